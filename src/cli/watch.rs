//! `axp watch`: a session as it goes on.

use axp_protocol::shape::SessionPhase;
use clap::Args;

use super::Context;
use super::error::CliError;
use super::follow::{Follower, Update};
use super::money::duration;
use super::profile::Need;
use super::render::Renderer;

const EXAMPLES: &str = "EXAMPLES
  axp watch                    the only open session
  axp watch parser-fix
  axp watch parser-fix --json | jq .action.type";

/// Follow a session as it goes on, until it is closed
///
/// With --json every action from now on is one line.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct WatchArgs {
    /// The session [default: the only open one]
    session: Option<String>,
}

/// Runs `axp watch`.
pub(crate) async fn run(args: WatchArgs, ctx: &Context) -> Result<(), CliError> {
    let mut host = ctx.host(Need::Read).await?;
    let session = host.session(args.session.as_deref()).await?;
    let mut follower = Follower::open(host.credentials().clone(), session.clone(), ctx.out.is_json()).await?;
    drop(host);
    let mut renderer = Renderer::new(ctx.out.style(), session, Some(ctx.invocation()));
    let mut shown = renderer.attach(follower.view());
    loop {
        shown.push_str(&renderer.update(follower.view()));
        ctx.out.print(&shown)?;
        if follower.view().exchange.status == SessionPhase::Closed {
            return Ok(());
        }
        let update = follower.next().await?;
        report(ctx, &update)?;
        shown.clear();
    }
}

/// Prints the envelopes of an update with `--json`, and says on stderr how the connection is.
pub(crate) fn report(ctx: &Context, update: &Update) -> Result<(), CliError> {
    match update {
        Update::Action(envelope) => ctx.out.json(envelope),
        Update::Known => Ok(()),
        Update::Resumed(missed) => {
            ctx.out.note("connected again");
            missed.iter().try_for_each(|envelope| ctx.out.json(envelope))
        }
        Update::Lost { why, wait } => {
            ctx.out.note(&format!(
                "{}; trying again in {}",
                super::sanitize::one_line(why, 300),
                duration(*wait)
            ));
            Ok(())
        }
    }
}
