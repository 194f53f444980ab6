//! Mutations whose answer was lost: asked again with their own operation ID before anything new is tried.

use std::sync::{Arc, Mutex, PoisonError};

use axp_protocol::method::Method;
use axp_protocol::shape::Allowance;
use serde_json::Value;

use crate::client::{AxpClient, ClientError};

/// A settlement as the ledger must learn of it.
#[derive(Debug, Clone)]
pub(super) struct Settlement {
    pub(super) turn: String,
    pub(super) charge: Allowance,
}

#[derive(Debug, Clone)]
struct Entry {
    number: u64,
    method: &'static str,
    params: Value,
    settlement: Option<Settlement>,
}

#[derive(Debug, Default)]
struct Inner {
    next: u64,
    entries: Vec<Entry>,
}

/// Open mutations, oldest first. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct Journal(Arc<Mutex<Inner>>);

impl Journal {
    fn with<T>(&self, use_it: impl FnOnce(&mut Inner) -> T) -> T {
        // Nothing panics while it holds this; a poisoned list is still a list.
        use_it(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Calls a method, remembering it until it is answered.
    pub(super) async fn call<M: Method>(
        &self,
        client: &AxpClient,
        params: &M::Params,
        settlement: Option<Settlement>,
    ) -> Result<M::Output, ClientError> {
        let value = serde_json::to_value(params)
            .map_err(|e| ClientError::Answer { method: M::NAME.into(), why: e.to_string() })?;
        let number = self.with(|inner| {
            inner.next += 1;
            let entry = Entry { number: inner.next, method: M::NAME, params: value, settlement };
            inner.entries.push(entry);
            inner.next
        });
        let result = client.call::<M>(params).await;
        if !matches!(&result, Err(error) if error.is_transient()) {
            self.forget(number);
        }
        result
    }

    fn forget(&self, number: u64) {
        self.with(|inner| inner.entries.retain(|e| e.number != number));
    }

    /// Asks every open mutation again, in order. A refusal closes it: what it wanted cannot be had any more.
    /// Returns the settlements that the host has accepted.
    ///
    /// # Errors
    /// When the connection is lost again; what is still open stays.
    pub(super) async fn replay(&self, client: &AxpClient) -> Result<Vec<Settlement>, ClientError> {
        let mut settled = Vec::new();
        for entry in self.with(|inner| inner.entries.clone()) {
            match client.request::<_, Value>(entry.method, &entry.params).await {
                Ok(_) => settled.extend(entry.settlement),
                Err(error) if error.is_transient() => return Err(error),
                Err(error) => tracing::info!(method = entry.method, %error, "a repeated request was refused"),
            }
            self.forget(entry.number);
        }
        Ok(settled)
    }
}
