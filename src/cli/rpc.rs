//! `axp rpc`: any method of the protocol, for scripts and for finding out.

use std::path::Path;

use axp_protocol::channel::ROOT;
use axp_protocol::limits::BLOB_FRAME_BYTES;
use axp_protocol::method::{METHODS, info};
use axp_protocol::scalar::Id;
use clap::Args;
use serde_json::{Map, Value, json};

use super::Context;
use super::error::CliError;
use super::input::{self, name};
use super::output::write_stdout;
use super::profile::Need;
use super::sanitize::escape_json;
use super::session::parse;
use crate::client::operation_id;

const EXAMPLES: &str = "EXAMPLES
  axp rpc --list
  echo '{\"query\":\"parser\"}' | axp rpc _axp/memorySearch --channel axp-memory://
  axp rpc _axp/close --session parser-fix
  axp rpc _axp/comment --session parser-fix --params comment.json --operation 1f0c…";

/// Call a method of the protocol, and print its result as JSON
///
/// A change needs an operation ID; one is made when it is missing, and printed on stderr, so that a call whose answer
/// was lost can be repeated without doing it twice.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RpcArgs {
    /// The method, such as _axp/comment
    #[arg(required_unless_present = "list")]
    method: Option<String>,
    /// File with the parameters as a JSON object; `-` is stdin
    #[arg(long, value_name = "FILE")]
    params: Option<std::path::PathBuf>,
    /// The session it is about, as its `channel`
    #[arg(long, value_name = "SESSION", conflicts_with = "channel")]
    session: Option<String>,
    /// Its `channel`
    #[arg(long, value_name = "URI")]
    channel: Option<String>,
    /// Its `operationId`: that of a call to repeat
    #[arg(long, value_name = "ID")]
    operation: Option<Id>,
    /// List AXP's methods
    #[arg(long, conflicts_with = "method")]
    list: bool,
}

/// Runs `axp rpc`.
pub(crate) async fn run(args: RpcArgs, ctx: &Context) -> Result<(), CliError> {
    let Some(method) = args.method.as_deref().filter(|_| !args.list) else {
        return list(ctx);
    };
    let mut params = match &args.params {
        Some(path) => read(path).await?,
        None => Map::new(),
    };
    if let Some(session) = &args.session {
        params.insert("channel".into(), json!(format!("axp-session:/{}", parse(session)?)));
    }
    if let Some(channel) = &args.channel {
        params.insert("channel".into(), json!(channel));
    }
    let changes = info(method).is_some_and(|method| method.mutates);
    if let Some(operation) = &args.operation {
        params.insert("operationId".into(), json!(operation));
    } else if changes && !params.contains_key("operationId") {
        params.insert("operationId".into(), json!(operation_id()));
    }
    params.entry("channel").or_insert_with(|| json!(ROOT));
    let mut host = ctx.host(Need::Read).await?;
    if let Some(operation) = params.get("operationId").and_then(Value::as_str).filter(|_| changes) {
        // Before it is sent: what is needed to repeat it must not get lost with the answer.
        ctx.out.note(&format!("operation {operation}"));
    }
    // A change may be asked twice, by its operation ID; what else there is reads, or is asked once.
    let params = Value::Object(params);
    let result: Value = if info(method).is_some() {
        host.request(method, &params).await?
    } else {
        host.once(method, &params).await?
    };
    let text = if ctx.out.is_json() {
        serde_json::to_string(&result)
    } else {
        serde_json::to_string_pretty(&result)
    };
    let text = text.map_err(|e| CliError::failed(format!("the result cannot be written as JSON: {e}")))?;
    let lines: Vec<_> = text.lines().map(escape_json).collect();
    write_stdout(format!("{}\n", lines.join("\n")).as_bytes())
}

fn list(ctx: &Context) -> Result<(), CliError> {
    let items: Vec<_> = METHODS
        .iter()
        .map(|m| json!({ "name": m.name, "changes": m.mutates, "about": m.about, "frameBytes": m.frame_bytes }))
        .collect();
    ctx.out.json(&items)?;
    let width = METHODS.iter().map(|m| m.name.len()).max().unwrap_or_default();
    METHODS.iter().try_for_each(|m| ctx.out.line(&format!("{:width$}  {}", m.name, m.about)))
}

async fn read(path: &Path) -> Result<Map<String, Value>, CliError> {
    let bytes = input::read(path, BLOB_FRAME_BYTES, "any method takes").await?;
    match serde_json::from_slice(&bytes) {
        Ok(Value::Object(params)) => Ok(params),
        Ok(_) => Err(CliError::usage(format!("{} holds no JSON object", name(path)))),
        Err(error) => Err(CliError::usage(format!("{} is no JSON: {error}", name(path)))),
    }
}
