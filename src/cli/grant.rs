//! `axp grant` and `axp revoke`: what a contributor lets a session spend.

use axp_protocol::channel::Channel;
use axp_protocol::method::params;
use axp_protocol::scalar::Id;
use axp_protocol::shape::{Allowance, ExchangeState, Grant};
use clap::Args;
use serde_json::{Value, json};

use super::Context;
use super::error::CliError;
use super::money::{Usd, allowance, count, parse_count, usd};
use super::output::table;
use super::paths::ledgers;
use super::profile::Need;
use super::sanitize::one_line;
use super::session::Host;
use crate::budget::{Account, approve_limit};
use crate::client::{operation_id, text};

const GRANT_EXAMPLES: &str = "EXAMPLES
  axp grant                                  limit, spent and left of every grant
  axp grant parser-fix --cost 2.00           raise or lower the cost; the rest stays
  axp grant parser-fix --turns 20 --tokens 500000 --grant g-1";

const REVOKE_EXAMPLES: &str = "EXAMPLES
  axp revoke parser-fix
  axp revoke parser-fix --grant g-1";

/// Change what your parked agent may spend, or list the grants of a session
///
/// With a limit, your grant is raised or lowered while the agent stays parked: never below what is spent, and not
/// while a turn is reserved on it. Without one, the session's grants are listed.
#[derive(Debug, Args)]
#[command(after_help = GRANT_EXAMPLES)]
pub(crate) struct GrantArgs {
    /// The session [default: the only open one]
    session: Option<String>,
    /// Tokens in all
    #[arg(long, value_name = "N", value_parser = parse_count)]
    tokens: Option<u64>,
    /// USD in all, such as 1.50
    #[arg(long, value_name = "USD")]
    cost: Option<Usd>,
    /// Turns in all
    #[arg(long, value_name = "N", value_parser = parse_count)]
    turns: Option<u64>,
    /// The grant [default: your only one]
    #[arg(long, value_name = "ID")]
    grant: Option<Id>,
}

/// Take a grant back: your parked agent stops at once
///
/// A turn that runs is charged as reserved. A revoked grant cannot be used again.
#[derive(Debug, Args)]
#[command(after_help = REVOKE_EXAMPLES)]
pub(crate) struct RevokeArgs {
    /// The session [default: the only open one]
    session: Option<String>,
    /// The grant [default: your only one]
    #[arg(long, value_name = "ID")]
    grant: Option<Id>,
}

/// Runs `axp grant`.
pub(crate) async fn grant(args: GrantArgs, ctx: &Context) -> Result<(), CliError> {
    let changes = args.tokens.is_some() || args.cost.is_some() || args.turns.is_some();
    let mut host = ctx.host(if changes { Need::Contribute } else { Need::ReadGrants }).await?;
    let session = host.session(args.session.as_deref()).await?;
    let mut exchange = exchange(&mut host, &session).await?;
    if changes {
        let own = own(&exchange, &host.info().principal, args.grant.as_ref(), &session)?;
        let limit = Allowance {
            tokens: args.tokens.unwrap_or(own.limit.tokens),
            cost_micros: args.cost.map_or(own.limit.cost_micros, |usd| usd.0),
            turns: args.turns.unwrap_or(own.limit.turns),
        };
        let params = params::Grant {
            channel: text(&Channel::Exchange(session.clone()).to_string())?,
            operation_id: operation_id(),
            grant_id: own.id.clone(),
            limit,
            enforcement: own.enforcement,
        };
        // A park on this machine takes the limit up when it hears of the change, so it is there before.
        let account = Account {
            host: host.credentials().url.clone(),
            repository: host.info().repository.clone(),
            session: session.to_string(),
            grant: own.id.to_string(),
        };
        approve_limit(&ledgers()?, &account, limit).map_err(|e| CliError::failed(e.to_string()))?;
        let changed = host.call::<params::Grant>(&params).await?;
        let left = allowance(&changed.limit.left(&changed.spent));
        ctx.out.done(&format!("Grant {} is now {}; left: {left}.", changed.id, allowance(&changed.limit)))?;
        exchange.grants.insert(changed.id.clone(), changed);
        return ctx.out.json(&listed(&exchange, args.grant.as_ref()));
    }
    if let Some(id) = &args.grant
        && !exchange.grants.contains_key(id)
    {
        return Err(CliError::failed(format!("no grant {id} in session {session}")));
    }
    ctx.out.json(&listed(&exchange, args.grant.as_ref()))?;
    if exchange.grants.is_empty() {
        return ctx.out.line(&format!("No grants in session {session} yet; axp park makes one."));
    }
    let rows: Vec<_> = exchange
        .grants
        .values()
        .filter(|g| args.grant.as_ref().is_none_or(|id| *id == g.id))
        .map(|g| row(g, exchange.reservation.as_ref().is_some_and(|r| r.grant_id == g.id)))
        .collect();
    ctx.out.line(&table(ctx.out.style(), &["GRANT", "OWNER", "", "TOKENS", "COST", "TURNS", "STATE"], &rows))
}

/// The grants as JSON, with what is left of each.
fn listed(exchange: &ExchangeState, only: Option<&Id>) -> Vec<Value> {
    let grants = exchange.grants.values().filter(|g| only.is_none_or(|id| *id == g.id));
    grants
        .map(|grant| {
            let mut value = json!(grant);
            value["left"] = json!(grant.limit.left(&grant.spent));
            value
        })
        .collect()
}

/// Spent of limit, for each of the three.
fn row(grant: &Grant, reserved: bool) -> Vec<String> {
    let Grant { limit, spent, .. } = grant;
    let left = limit.left(spent);
    let of = |spent: String, limit: String, left: String| format!("{spent} of {limit}, {left} left");
    vec![
        grant.id.to_string(),
        one_line(&grant.owner, 40),
        String::new(),
        of(count(spent.tokens), count(limit.tokens), count(left.tokens)),
        of(usd(spent.cost_micros), usd(limit.cost_micros), usd(left.cost_micros)),
        of(count(spent.turns), count(limit.turns), count(left.turns)),
        if grant.revoked {
            "revoked".into()
        } else if reserved {
            "in a turn".into()
        } else {
            "open".into()
        },
    ]
}

/// Runs `axp revoke`.
pub(crate) async fn revoke(args: RevokeArgs, ctx: &Context) -> Result<(), CliError> {
    let mut host = ctx.host(Need::Contribute).await?;
    let session = host.session(args.session.as_deref()).await?;
    let exchange = exchange(&mut host, &session).await?;
    let id = own(&exchange, &host.info().principal, args.grant.as_ref(), &session)?.id.clone();
    let params = params::Revoke {
        channel: text(&Channel::Exchange(session.clone()).to_string())?,
        operation_id: operation_id(),
        grant_id: id.clone(),
    };
    host.call::<params::Revoke>(&params).await?;
    ctx.out.json(&json!({ "session": session, "grant": id }))?;
    ctx.out.done(&format!("Revoked grant {id} of session {session}."))
}

async fn exchange(host: &mut Host, session: &Id) -> Result<ExchangeState, CliError> {
    Ok(host.snapshot(&Channel::Exchange(session.clone())).await?)
}

/// The grant that was named, or our only one that is not revoked.
fn own<'a>(
    exchange: &'a ExchangeState,
    principal: &Id,
    named: Option<&Id>,
    session: &Id,
) -> Result<&'a Grant, CliError> {
    if let Some(id) = named {
        // Whose it is, the host decides.
        return exchange.grants.get(id).ok_or_else(|| {
            CliError::failed(format!("no grant {id} in session {session}"))
                .hint(format!("`axp grant {session}` lists them"))
        });
    }
    let own: Vec<_> =
        exchange.grants.values().filter(|g| g.owner == principal.as_str() && !g.revoked).collect();
    match own.as_slice() {
        [one] => Ok(one),
        [] => Err(CliError::conflict(format!("{principal} has no grant in session {session}"))
            .hint(format!("axp park {session} -- AGENT ARGS makes one"))),
        several => {
            let ids: Vec<_> = several.iter().map(|g| g.id.as_str()).collect();
            Err(CliError::usage(format!("{principal} has several grants in session {session}"))
                .hint(format!("name one with --grant: {}", ids.join(", "))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::error::ExitCode;
    use super::*;
    use axp_protocol::shape::Enforcement;

    fn grant(id: &str, owner: &str, revoked: bool) -> Grant {
        Grant {
            id: Id::new(id).unwrap(),
            owner: owner.into(),
            limit: Allowance { tokens: 100_000, cost_micros: 1_000_000, turns: 10 },
            spent: Allowance { tokens: 1_234, cost_micros: 10_000, turns: 1 },
            revoked,
            enforcement: Enforcement::Accounting,
        }
    }

    fn state(grants: Vec<Grant>) -> ExchangeState {
        let mut state = super::super::render::sample_view().exchange;
        state.grants = grants.into_iter().map(|g| (g.id.clone(), g)).collect();
        state
    }

    #[test]
    fn the_only_own_grant_need_not_be_named() {
        let (alice, s) = (Id::new("alice").unwrap(), Id::new("s").unwrap());
        let state1 =
            state(vec![grant("a", "alice", false), grant("b", "bob", false), grant("c", "alice", true)]);
        assert_eq!(own(&state1, &alice, None, &s).unwrap().id.as_str(), "a");
        let named = Id::new("b").unwrap();
        assert_eq!(own(&state1, &alice, Some(&named), &s).unwrap().id.as_str(), "b");
        let two = state(vec![grant("a", "alice", false), grant("d", "alice", false)]);
        let error = own(&two, &alice, None, &s).unwrap_err();
        assert_eq!((error.code, error.hint.unwrap().contains("a, d")), (ExitCode::Usage, true));
        assert_eq!(own(&state(vec![]), &alice, None, &s).unwrap_err().code, ExitCode::Conflict);
    }

    #[test]
    fn a_row_says_what_is_left() {
        let row = row(&grant("a", "alice", false), true);
        assert_eq!(row[3], "1,234 of 100,000, 98,766 left");
        assert_eq!(row[4], "$0.01 of $1.00, $0.99 left");
        assert_eq!(row[6], "in a turn");
    }
}
