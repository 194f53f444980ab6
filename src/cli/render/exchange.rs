//! Who runs the session, on whose budget, and what came of it.

use std::collections::BTreeMap;

use axp_protocol::scalar::{Id, Sha};
use axp_protocol::shape::{Allowance, ExchangeState, Grant, SessionPhase};

use super::Page;
use crate::cli::money::{allowance, counted};
use crate::cli::output::Style;
use crate::cli::sanitize::one_line;

/// What has been shown of the exchange.
#[derive(Debug, Default)]
pub(super) struct ExchangeShown {
    phase: Option<SessionPhase>,
    holder: Option<(String, u64)>,
    /// Limit, and whether it is revoked.
    grants: BTreeMap<Id, (Allowance, bool)>,
    checkpoint: Option<Sha>,
    comments: usize,
}

impl ExchangeShown {
    /// Everything in it.
    pub(super) fn of(state: &ExchangeState) -> Self {
        Self {
            phase: Some(state.status),
            holder: state.lease.as_ref().map(|l| (l.owner.clone(), l.epoch)),
            grants: state.grants.iter().map(|(id, g)| (id.clone(), (g.limit, g.revoked))).collect(),
            checkpoint: state.checkpoint.as_ref().map(|c| c.head_commit.clone()),
            comments: state.discussion.len(),
        }
    }

    /// Shows what is new.
    pub(super) fn update(&mut self, style: Style, state: &ExchangeState, files: u64, page: &mut Page) {
        let now = Self::of(state);
        if now.phase == self.phase
            && now.holder == self.holder
            && now.grants == self.grants
            && now.checkpoint == self.checkpoint
            && now.comments == self.comments
        {
            return;
        }
        for (id, grant) in &state.grants {
            let line = match self.grants.get(id) {
                None => format!("gives {}", allowance(&grant.limit)),
                Some((_, false)) if grant.revoked => "revoked".to_owned(),
                Some((limit, _)) if *limit != grant.limit => format!("is now {}", allowance(&grant.limit)),
                Some(_) => continue,
            };
            let who = one_line(&grant.owner, 80);
            page.line(&style.accent(&format!("◇ grant {id} of {who}: {line}")));
        }
        if now.holder != self.holder || now.phase != self.phase {
            let line = self.lease_line(state);
            page.line(&style.accent(&line));
        }
        if now.checkpoint != self.checkpoint
            && let Some(checkpoint) = &state.checkpoint
        {
            page.line(&style.accent(&format!(
                "◆ checkpoint {} on {}: {}",
                short(&checkpoint.head_commit),
                one_line(&checkpoint.branch, 120),
                counted(files, "file", "files")
            )));
        }
        for comment in state.discussion.iter().skip(self.comments.min(state.discussion.len())) {
            let who = one_line(&comment.author, 80);
            page.line(&format!("{} {}", style.accent(&format!("# {who}:")), one_line(&comment.body, 500)));
        }
        *self = now;
    }

    fn lease_line(&self, state: &ExchangeState) -> String {
        let before = self.holder.as_ref().map(|(owner, _)| one_line(owner, 80));
        match (&state.lease, before) {
            (Some(lease), before) => {
                let owner = one_line(&lease.owner, 80);
                let epoch = lease.epoch;
                if before.as_deref() == Some(owner.as_str()) {
                    format!("▸ {owner} is back (epoch {epoch})")
                } else {
                    format!("▸ {owner} has parked an agent (epoch {epoch})")
                }
            }
            (None, before) => {
                let who = before.unwrap_or_else(|| "the contributor".into());
                match state.status {
                    SessionPhase::Closed => "▪ the session is closed".to_owned(),
                    SessionPhase::Orphaned => {
                        format!("▹ {who} is gone: the session waits for somebody to park at it")
                    }
                    SessionPhase::Open => format!("▹ {who} has taken the agent away"),
                }
            }
        }
    }
}

/// How things stand, a few lines.
pub(super) fn summary(style: Style, state: &ExchangeState) -> Vec<String> {
    let mut lines = vec![match (&state.status, &state.lease) {
        (SessionPhase::Closed, _) => "closed".to_owned(),
        (_, Some(lease)) => {
            format!("{}'s agent is parked here (epoch {})", one_line(&lease.owner, 80), lease.epoch)
        }
        (SessionPhase::Orphaned, None) => "orphaned: its agent is gone; somebody can park at it".to_owned(),
        (SessionPhase::Open, None) => "no agent is parked here yet".to_owned(),
    }];
    lines.extend(state.grants.values().filter(|g| !g.revoked).map(|g| style.dim(&grant_line(g))));
    if let Some(checkpoint) = &state.checkpoint {
        let branch = one_line(&checkpoint.branch, 120);
        lines.push(style.dim(&format!("checkpoint {} on {branch}", short(&checkpoint.head_commit))));
    }
    lines
}

fn grant_line(grant: &Grant) -> String {
    let left = allowance(&grant.limit.left(&grant.spent));
    format!("grant {} of {}: {left} left", grant.id, one_line(&grant.owner, 80))
}

/// The first digits of a commit.
pub(super) fn short(commit: &Sha) -> &str {
    commit.get(..10).unwrap_or(commit)
}
