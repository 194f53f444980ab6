//! `axp submit`, `accept` and `publish`: who stands behind a checkpoint, and where it goes.

use std::path::{Path, PathBuf};

use ahp_types::state::ChangesetState;
use axp_protocol::canonical::hash;
use axp_protocol::channel::Channel;
use axp_protocol::method::params;
use axp_protocol::scalar::{Digest, Id, Int, Text};
use axp_protocol::shape::{Checkpoint, ExchangeState, ExecutorRegistry, Manifest, Review};
use axp_protocol::signature::{fingerprint, verify};
use clap::Args;
use serde_json::json;

use super::Context;
use super::confirm::confirm;
use super::error::CliError;
use super::keys;
use super::money::counted;
use super::profile::Need;
use super::render::short;
use super::sanitize::{one_line, reveal_line};
use super::session::Host;
use crate::client::{operation_id, text};
use crate::history::{Archive, HistoryError, Trace, audit, manifest_fits};
use crate::reconnect::download_with;
use crate::worktree::{BundleFile, PublishRequest, Repository, diffstat};

const SUBMIT_EXAMPLES: &str = "EXAMPLES
  axp keygen
  axp submit parser-fix
  axp submit parser-fix --model \"Some Model 4\" --key ~/keys/project.pem";

const ACCEPT_EXAMPLES: &str = "EXAMPLES
  axp accept parser-fix
  axp accept parser-fix --directory ~/clone      counts the changed lines in that clone, when it has the commit
  axp accept parser-fix --yes";

const PUBLISH_EXAMPLES: &str = "EXAMPLES
  axp publish parser-fix                          pushes axp/parser-fix to origin
  axp publish parser-fix --remote upstream --name fix-42
  axp publish parser-fix --trust contributor.pub.pem --trust maintainer.pub.pem";

/// Sign the checkpoint of your parked agent and submit it for review (contributors)
///
/// What is signed names the commits, the model, what the agent was told, and a hash of everything that was recorded.
/// The recorded history is checked first. A later checkpoint voids it.
#[derive(Debug, Args)]
#[command(after_help = SUBMIT_EXAMPLES)]
pub(crate) struct SubmitArgs {
    /// The session [default: the only open one]
    session: Option<String>,
    /// The model that did the work [default: the parked agent's name]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    #[command(flatten)]
    key: KeyArgs,
    #[command(flatten)]
    clone: CloneArgs,
}

/// Look at what was submitted, and sign it as a maintainer
///
/// Shows exactly what is signed, and asks. A submission that changes meanwhile is not signed.
#[derive(Debug, Args)]
#[command(after_help = ACCEPT_EXAMPLES)]
pub(crate) struct AcceptArgs {
    /// The session [default: the only open one]
    session: Option<String>,
    #[command(flatten)]
    key: KeyArgs,
    #[command(flatten)]
    clone: CloneArgs,
    /// Sign without asking
    #[arg(long)]
    yes: bool,
}

/// Push a reviewed checkpoint as branch axp/NAME to a remote of your clone
///
/// It needs both signatures over the current checkpoint, at least one of them by a key you trust. Nothing is forced:
/// a branch of that name with other commits stays as it is.
#[derive(Debug, Args)]
#[command(after_help = PUBLISH_EXAMPLES)]
pub(crate) struct PublishArgs {
    /// The session [default: the only open one]
    session: Option<String>,
    #[command(flatten)]
    clone: CloneArgs,
    /// Remote to push to, by its name in the clone's configuration
    #[arg(long, value_name = "NAME", default_value = "origin")]
    remote: String,
    /// The branch is axp/NAME [default: the session's ID]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// A public key (PEM) to trust; can be given again [default: your own key]
    #[arg(long, value_name = "FILE")]
    trust: Vec<PathBuf>,
    #[command(flatten)]
    key: KeyArgs,
}

#[derive(Debug, Args)]
struct KeyArgs {
    /// Your private key [default: the one `axp keygen` makes]
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct CloneArgs {
    /// A clone of the project
    #[arg(long, value_name = "DIR", default_value = ".")]
    directory: PathBuf,
}

/// Runs `axp submit`.
pub(crate) async fn submit(args: SubmitArgs, ctx: &Context) -> Result<(), CliError> {
    let key = keys::read(args.key.key.as_deref())?;
    let mut host = ctx.host(Need::Contribute).await?;
    let session = host.session(args.session.as_deref()).await?;
    let channel = text(&Channel::Exchange(session.clone()).to_string())?;
    let exchange: ExchangeState = host.snapshot(&Channel::Exchange(session.clone())).await?;
    let checkpoint = current(&exchange, &session)?;
    let model = match args.model {
        Some(model) => model,
        None => agent_name(&mut host, &exchange, &session).await?,
    };
    let model = Text::new(model).map_err(|why| CliError::usage(format!("--model: {why}")))?;
    let context = params::Context { channel: channel.clone(), max_chars: Int::clamped(200_000) };
    let prompt = host.call::<params::Context>(&context).await?.text;

    let archive = super::export::history(host.credentials(), &session, &ctx.out).await?;
    let spinner = ctx.out.spinner(&format!("checking the history of {session}"));
    let (trace, through) = tokio::task::spawn_blocking(move || checked_trace(archive))
        .await
        .map_err(|e| CliError::failed(format!("the check ended early: {e}")))??;
    let manifest = manifest(&exchange, checkpoint, model, &prompt, trace, through)?;
    drop(spinner);
    let signature = key
        .private
        .sign(&manifest)
        .map_err(|e| CliError::failed(format!("the submission cannot be signed: {e}")))?;
    let changeset: ChangesetState = host.snapshot(&Channel::Changeset(session.clone())).await?;
    ctx.out.print(&described(
        &manifest,
        &exchange,
        &key.fingerprint,
        &lines(&args.clone, &manifest, &changeset),
    ))?;
    let review = params::Review { channel, operation_id: operation_id(), manifest, contributor: signature };
    let review = host.call::<params::Review>(&review).await?;
    ctx.out.json(&review)?;
    ctx.out.done(&format!("Submitted {} of session {session}.", short(&review.manifest.head_commit)))?;
    ctx.out.note(&format!("A maintainer signs it: axp accept {session}"));
    Ok(())
}

/// The hash of everything that was recorded, as far as it holds together, and up to where.
fn checked_trace(mut archive: Archive) -> Result<(String, u64), CliError> {
    let session = archive.session().clone();
    let unsound = |why: String| {
        CliError::failed(format!("the recorded history of session {session} does not hold together: {why}"))
            .hint("nothing was signed; the host is broken, or lies")
    };
    for check in audit(&mut archive).map_err(|e| unsound(e.to_string()))? {
        if !check.holds {
            return Err(unsound(format!("{}: {}", check.what, check.found)));
        }
    }
    let through = archive.head().server_seq;
    let mut trace = Trace::new(&session, through);
    archive.actions(|action| {
        trace.push(&action);
        Ok::<_, HistoryError>(())
    })?;
    Ok((trace.finish(), through))
}

/// What is signed: the current checkpoint and everything that was recorded up to now.
fn manifest(
    exchange: &ExchangeState,
    checkpoint: &Checkpoint,
    model: Text<1, 256>,
    prompt: &str,
    trace: String,
    through: u64,
) -> Result<Manifest, CliError> {
    let digest = |value: Result<String, String>| {
        value.and_then(Digest::new).map_err(|why| CliError::failed(format!("cannot be hashed: {why}")))
    };
    let hashed = |value: &serde_json::Value| digest(hash(value).map_err(|e| e.to_string()));
    Ok(Manifest {
        version: Int::clamped(1),
        repository: Text::new(exchange.repository.clone()).map_err(CliError::failed)?,
        session: Text::new(exchange.session.clone()).map_err(CliError::failed)?,
        base_commit: checkpoint.base_commit.clone(),
        head_commit: checkpoint.head_commit.clone(),
        model,
        prompt_hash: hashed(&json!(prompt))?,
        trace_hash: digest(Ok(trace))?,
        trace_through_seq: through,
        checkpoint_digest: hashed(&json!(checkpoint))?,
    })
}

async fn agent_name(host: &mut Host, exchange: &ExchangeState, session: &Id) -> Result<String, CliError> {
    let Some(lease) = &exchange.lease else {
        return Err(CliError::conflict(format!("no agent of yours is parked at session {session}"))
            .hint("only whoever runs the session submits it; park there, then submit"));
    };
    let registry: ExecutorRegistry = host.snapshot(&Channel::Executors).await?;
    let name = registry.entries.get(&lease.executor_id).map(|executor| executor.name.clone());
    name.ok_or_else(|| CliError::usage("the parked agent gave no name").hint("name the model: --model NAME"))
}

/// Runs `axp accept`.
pub(crate) async fn accept(args: AcceptArgs, ctx: &Context) -> Result<(), CliError> {
    let key = keys::read(args.key.key.as_deref())?;
    let mut host = ctx.host(Need::Maintain).await?;
    let session = host.session(args.session.as_deref()).await?;
    let exchange: ExchangeState = host.snapshot(&Channel::Exchange(session.clone())).await?;
    let changeset: ChangesetState = host.snapshot(&Channel::Changeset(session.clone())).await?;
    let review = submitted(&exchange, &session)?;
    let by = contributor(&exchange, review, &session)?;
    if by == key.fingerprint {
        return Err(CliError::usage("this is the key the contributor signed with")
            .hint("sign with another: --key FILE"));
    }
    let manifest = &review.manifest;
    ctx.out.print(&described(manifest, &exchange, &by, &lines(&args.clone, manifest, &changeset)))?;
    confirm(ctx, args.yes, "sign this as a maintainer?").await?;
    // For exactly what was shown: a host that has another one by now refuses the signature.
    let signature =
        key.private.sign(manifest).map_err(|e| CliError::failed(format!("it cannot be signed: {e}")))?;
    let approve = params::ApproveReview {
        channel: text(&Channel::Exchange(session.clone()).to_string())?,
        operation_id: operation_id(),
        signature,
    };
    let review = host.call::<params::ApproveReview>(&approve).await?;
    ctx.out.json(&review)?;
    ctx.out.done(&format!("Signed {} of session {session}.", short(&review.manifest.head_commit)))?;
    ctx.out.note(&format!("It may be published: axp publish {session}"));
    Ok(())
}

/// Runs `axp publish`.
pub(crate) async fn publish(args: PublishArgs, ctx: &Context) -> Result<(), CliError> {
    let mut trusted = args.trust.iter().map(|path| keys::read_public(path)).collect::<Result<Vec<_>, _>>()?;
    if trusted.is_empty() || args.key.key.is_some() {
        let own = keys::read(args.key.key.as_deref());
        trusted.push(
            own.map_err(|e| CliError { hint: Some("trust a public key: --trust FILE".into()), ..e })?
                .fingerprint,
        );
    }
    let repository =
        Repository::discover(&args.clone.directory).map_err(|e| CliError::failed(e.to_string()))?;
    let mut host = ctx.host(Need::Read).await?;
    let session = host.session(args.session.as_deref()).await?;
    let exchange: ExchangeState = host.snapshot(&Channel::Exchange(session.clone())).await?;
    let review = submitted(&exchange, &session)?;
    let checkpoint = current(&exchange, &session)?.clone();
    let keys = both_signed(&exchange, review, &session)?;
    if !keys.iter().any(|key| trusted.contains(key)) {
        return Err(CliError::new(
            super::error::ExitCode::NotPermitted,
            format!("none of the signatures on {} is by a key you trust", short(&checkpoint.head_commit)),
        )
        .hint(format!("they are by {} and {}; --trust FILE names a public key", keys[0], keys[1])));
    }
    let name = args.name.unwrap_or_else(|| session.to_string());
    let spinner = ctx.out.spinner(&format!("publishing {}", short(&checkpoint.head_commit)));
    let known = repository.has_commit(&checkpoint.head_commit).unwrap_or(false);
    let bundle = if known { None } else { Some(fetch(&mut host, &session, &checkpoint).await?) };
    let remote = args.remote.clone();
    let pushed = tokio::task::spawn_blocking(move || {
        let bundle =
            bundle.as_ref().map(|file| BundleFile { path: file.path(), sha256: &checkpoint.bundle.sha256 });
        let request = PublishRequest {
            bundle,
            base: &checkpoint.base_commit,
            head: &checkpoint.head_commit,
            remote: &remote,
            name: &name,
        };
        crate::worktree::publish(&repository, &request, &mut |_| {})
            .map(|branch| (branch, checkpoint.head_commit))
    });
    let (branch, head) = pushed
        .await
        .map_err(|e| CliError::failed(format!("the push ended early: {e}")))?
        .map_err(|e| CliError::failed(e.to_string()))?;
    drop(spinner);
    ctx.out
        .json(&json!({ "session": session, "remote": args.remote, "branch": branch, "headCommit": head }))?;
    ctx.out.done(&format!("Pushed {} to {} as {branch}.", short(&head), args.remote))
}

/// A checkpoint's bundle in a temporary file.
pub(crate) async fn fetch(
    host: &mut Host,
    session: &Id,
    checkpoint: &Checkpoint,
) -> Result<tempfile::NamedTempFile, CliError> {
    let get = params::BlobGet {
        channel: text(&Channel::Exchange(session.clone()).to_string())?,
        digest: checkpoint.bundle.sha256.clone(),
    };
    let blob = host.call::<params::BlobGet>(&get).await?;
    download_with(blob, checkpoint).map_err(CliError::failed)
}

/// The checkpoint that is there.
pub(crate) fn current<'a>(exchange: &'a ExchangeState, session: &Id) -> Result<&'a Checkpoint, CliError> {
    exchange.checkpoint.as_ref().ok_or_else(|| {
        CliError::conflict(format!("session {session} has no checkpoint: its agent has changed nothing yet"))
    })
}

fn submitted<'a>(exchange: &'a ExchangeState, session: &Id) -> Result<&'a Review, CliError> {
    exchange.review.as_ref().ok_or_else(|| {
        CliError::conflict(format!("nothing is submitted in session {session}"))
            .hint(format!("its contributor does: axp submit {session}"))
    })
}

/// The contributor's key, when the submission is sound and of the current checkpoint.
fn contributor(exchange: &ExchangeState, review: &Review, session: &Id) -> Result<Digest, CliError> {
    if !manifest_fits(exchange, review) {
        return Err(CliError::conflict(format!(
            "what is submitted in session {session} is not of its current checkpoint"
        )));
    }
    let unsound = |e| CliError::failed(format!("the contributor's signature does not hold: {e}"));
    verify(&review.manifest, &review.contributor).map_err(unsound)?;
    fingerprint(&review.contributor.public_key).map_err(unsound)
}

/// Both keys, when both signatures are sound and of the current checkpoint.
fn both_signed(exchange: &ExchangeState, review: &Review, session: &Id) -> Result<[Digest; 2], CliError> {
    let contributor = contributor(exchange, review, session)?;
    let Some(signature) = &review.maintainer else {
        return Err(CliError::conflict(format!(
            "no maintainer has signed the checkpoint of session {session}"
        ))
        .hint(format!("one does: axp accept {session}")));
    };
    let unsound = |e| CliError::failed(format!("the maintainer's signature does not hold: {e}"));
    verify(&review.manifest, signature).map_err(unsound)?;
    let maintainer = fingerprint(&signature.public_key).map_err(unsound)?;
    if maintainer == contributor {
        return Err(CliError::failed("both signatures are by the same key"));
    }
    Ok([contributor, maintainer])
}

/// What changed, in lines, and where the figures come from.
fn lines(clone: &CloneArgs, manifest: &Manifest, changeset: &ChangesetState) -> String {
    if let Some(stat) = local_lines(&clone.directory, manifest) {
        return format!("  changed     as counted in your clone:\n{stat}");
    }
    let mut text = "  changed     as the host tells it; a clone that has the commit can count:\n".to_owned();
    for file in changeset.files.iter().take(50) {
        let count = |of: &str| {
            file.edit
                .diff
                .as_ref()
                .and_then(|diff| diff.get(of))
                .and_then(serde_json::Value::as_u64)
                .unwrap_or(0)
        };
        let (added, removed) = (count("added"), count("removed"));
        text.push_str(&format!("    {}  +{added} -{removed}\n", reveal_line(&file.id, 200)));
    }
    let more = changeset.files.len().saturating_sub(50) as u64;
    if more > 0 {
        text.push_str(&format!("    … and {} more\n", counted(more, "file", "files")));
    }
    text
}

fn local_lines(directory: &Path, manifest: &Manifest) -> Option<String> {
    let repository = Repository::discover(directory).ok()?;
    let stat = diffstat(&repository, &manifest.base_commit, &manifest.head_commit).ok()?;
    Some(stat.to_string().lines().map(|line| format!("    {}\n", line.trim_start())).collect())
}

/// Everything that a signature stands for.
fn described(manifest: &Manifest, exchange: &ExchangeState, key: &Digest, lines: &str) -> String {
    let mut payers: Vec<_> = exchange
        .usage
        .iter()
        .filter_map(|settled| exchange.grants.get(&settled.grant_id))
        .map(|grant| one_line(&grant.owner, 80))
        .collect();
    payers.sort();
    payers.dedup();
    let verified = match &exchange.verification {
        Some(v) if v.head_commit == manifest.head_commit => format!(
            "exit code {} of `{}`, by {}",
            v.exit_code,
            reveal_line(&v.command.join(" "), 200),
            one_line(&v.verifier, 80)
        ),
        _ => "not yet".to_owned(),
    };
    format!(
        "  repository  {}\n  session     {}\n  base        {}\n  head        {}\n  model       {}\n  paid by     {}\n  \
         key         {key}\n  recorded    actions up to {}\n  verified    {verified}\n{lines}",
        reveal_line(&manifest.repository, 256),
        reveal_line(&manifest.session, 256),
        &*manifest.base_commit,
        &*manifest.head_commit,
        reveal_line(&manifest.model, 256),
        payers.join(", "),
        manifest.trace_through_seq,
    )
}
