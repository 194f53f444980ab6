//! `axp approve` and `axp deny`: answer a tool call that waits.

use axp_protocol::channel::Channel;
use axp_protocol::scalar::Id;
use clap::Args;
use serde_json::json;

use super::Context;
use super::error::CliError;
use super::profile::{Need, quoted};
use super::sanitize::{reveal, reveal_line};
use super::turn::dispatch;
use super::waiting::{Waiting, offered, waiting};

const APPROVE_EXAMPLES: &str = "EXAMPLES
  axp approve                               the only call that waits in the only open session
  axp approve parser-fix --tool call_7      one of several
  axp approve parser-fix --option always    another option than \"once\"";

const DENY_EXAMPLES: &str = "EXAMPLES
  axp deny
  axp deny parser-fix --tool call_7";

/// Allow a tool call that waits for permission (maintainers)
///
/// The option that holds for this call only is chosen, unless --option names another.
#[derive(Debug, Args)]
#[command(after_help = APPROVE_EXAMPLES)]
pub(crate) struct ApproveArgs {
    #[command(flatten)]
    which: Which,
}

/// Refuse a tool call that waits for permission (maintainers)
#[derive(Debug, Args)]
#[command(after_help = DENY_EXAMPLES)]
pub(crate) struct DenyArgs {
    #[command(flatten)]
    which: Which,
}

#[derive(Debug, Args)]
struct Which {
    /// The session [default: the only open one]
    session: Option<String>,
    /// The tool call [default: the only one that waits]
    #[arg(long, value_name = "ID")]
    tool: Option<String>,
    /// The offered option to answer with
    #[arg(long, value_name = "ID")]
    option: Option<String>,
}

/// Runs `axp approve`.
pub(crate) async fn approve(args: ApproveArgs, ctx: &Context) -> Result<(), CliError> {
    answer(&args.which, true, ctx).await
}

/// Runs `axp deny`.
pub(crate) async fn deny(args: DenyArgs, ctx: &Context) -> Result<(), CliError> {
    answer(&args.which, false, ctx).await
}

async fn answer(which: &Which, approve: bool, ctx: &Context) -> Result<(), CliError> {
    let mut host = ctx.host(Need::Maintain).await?;
    let session = host.session(which.session.as_deref()).await?;
    let chat = host.snapshot(&Channel::Chat(session.clone())).await?;
    let calls = waiting(&chat);
    let verb = if approve { "approve" } else { "deny" };
    let call = pick(&calls, which.tool.as_deref(), &session, &format!("{} {verb}", ctx.invocation()))?;
    let option = call.choose(approve, which.option.as_deref())?;
    dispatch(&mut host, &session, call.answer(approve, option)).await?;
    ctx.out.json(&json!({
        "session": session,
        "tool": call.call.tool_call_id,
        "approved": approve,
        "option": option.map(|o| &o.id),
    }))?;
    let label = option.map(|o| format!(" ({})", reveal_line(&o.label, 80))).unwrap_or_default();
    let done = if approve { "Allowed" } else { "Denied" };
    ctx.out.done(&format!("{done}: {}{label}", call.title()))
}

fn pick<'a>(
    calls: &[Waiting<'a>],
    tool: Option<&str>,
    session: &Id,
    command: &str,
) -> Result<Waiting<'a>, CliError> {
    let listed = || {
        let lines = calls.iter().map(|c| {
            format!(
                "  {} {session} --tool {}\n    {}: {}",
                command,
                reveal(&quoted(&c.call.tool_call_id)),
                c.title(),
                offered(c.call.options.as_deref().unwrap_or_default())
            )
        });
        lines.collect::<Vec<_>>().join("\n")
    };
    match (calls, tool) {
        ([], _) => Err(CliError::conflict(format!("no tool call waits for permission in session {session}"))
            .hint(format!("`axp watch {session}` shows when one does"))),
        ([one], None) => Ok(*one),
        (several, None) => Err(CliError::usage(format!(
            "{} tool calls wait for permission in session {session}; name one:\n{}",
            several.len(),
            listed()
        ))),
        (some, Some(tool)) => some.iter().find(|c| c.call.tool_call_id == tool).copied().ok_or_else(|| {
            CliError::conflict(format!(
                "tool call {tool:?} does not wait for permission in session {session}; these do:\n{}",
                listed()
            ))
        }),
    }
}
