//! Who runs the session, on whose budget, and what came of it.

use std::collections::BTreeMap;

use axp_protocol::scalar::{Id, Sha};
use axp_protocol::shape::{
    Allowance, DiscussionComment, ExchangeState, Grant, Review, SessionPhase, Verification,
};

use super::Page;
use crate::cli::money::{allowance, counted};
use crate::cli::output::Style;
use crate::cli::sanitize::{one_line, reveal_line, strip};

/// Comments that are shown of a thread at first.
const COMMENTS: usize = 10;

/// What has been shown of the exchange.
#[derive(Debug, Default, PartialEq)]
pub(super) struct ExchangeShown {
    phase: Option<SessionPhase>,
    holder: Option<(String, u64)>,
    /// Limit, and whether it is revoked.
    grants: BTreeMap<Id, (Allowance, bool)>,
    checkpoint: Option<Sha>,
    /// ID of the newest comment.
    comment: Option<Id>,
    proposal: Option<Id>,
    revision: u64,
    review: Option<Review>,
    verification: Option<Verification>,
}

impl ExchangeShown {
    /// Everything in it.
    pub(super) fn of(state: &ExchangeState) -> Self {
        Self {
            phase: Some(state.status),
            holder: state.lease.as_ref().map(|l| (l.owner.clone(), l.epoch)),
            grants: state.grants.iter().map(|(id, g)| (id.clone(), (g.limit, g.revoked))).collect(),
            checkpoint: state.checkpoint.as_ref().map(|c| c.head_commit.clone()),
            comment: state.discussion.last().map(|c| c.id.clone()),
            proposal: state.compaction.as_ref().map(|c| c.id.clone()),
            revision: state.context.revision,
            review: state.review.clone(),
            verification: state.verification.clone(),
        }
    }

    /// Shows what is new.
    pub(super) fn update(&mut self, style: Style, state: &ExchangeState, files: u64, page: &mut Page) {
        let now = Self::of(state);
        if now == *self {
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
        // Those after the last one that was shown; old ones leave a long thread.
        let known = self.comment.as_ref();
        let at = state.discussion.iter().rposition(|comment| Some(&comment.id) == known);
        for comment in state.discussion.iter().skip(at.map_or(0, |at| at + 1)) {
            page.line(&comment_line(style, comment));
        }
        if now.proposal != self.proposal
            && let Some(line) = proposal_line(state)
        {
            page.line(&style.ask(&line));
        }
        if now.revision != self.revision {
            page.line(&style.accent(&format!(
                "≡ the summary of the first {} is taken (revision {})",
                counted(state.context.through_turn, "turn", "turns"),
                now.revision
            )));
        }
        if now.review != self.review
            && let Some(review) = &state.review
        {
            page.line(&style.accent(&review_line(review)));
        }
        if now.verification != self.verification
            && let Some(verification) = &state.verification
        {
            page.line(&verification_line(style, verification));
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
    lines.extend(state.review.as_ref().map(|review| style.dim(&review_line(review))));
    lines.extend(state.verification.as_ref().map(|verification| verification_line(style, verification)));
    lines.extend(proposal_line(state).map(|line| style.ask(&line)));
    let earlier = state.discussion.len().saturating_sub(COMMENTS);
    if earlier > 0 {
        let earlier = counted(earlier as u64, "earlier comment", "earlier comments");
        lines.push(style.dim(&format!("# … {earlier}")));
    }
    lines.extend(state.discussion.iter().skip(earlier).map(|comment| comment_line(style, comment)));
    lines
}

/// Who said what, when, and of which file.
fn comment_line(style: Style, comment: &DiscussionComment) -> String {
    let at = i64::try_from(comment.created_at).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    let at = at.map(|at| format!(", {} UTC", at.strftime("%Y-%m-%d %H:%M"))).unwrap_or_default();
    let file =
        comment.path.as_deref().map(|path| format!(", on {}", one_line(path, 200))).unwrap_or_default();
    let head = format!("# {}{at}{file}:", one_line(&comment.author, 80));
    format!("{} {}", style.accent(&head), strip(comment.body.trim_end()).replace('\n', "\n  "))
}

fn proposal_line(state: &ExchangeState) -> Option<String> {
    let proposal = state.compaction.as_ref()?;
    Some(format!(
        "≡ {} proposes a summary of the first {}: `axp compact accept` shows it",
        one_line(&proposal.author, 80),
        counted(proposal.context.through_turn, "turn", "turns")
    ))
}

fn review_line(review: &Review) -> String {
    let head = short(&review.manifest.head_commit);
    match review.maintainer {
        None => format!("✎ {head} is submitted for review: `axp accept` shows it"),
        Some(_) => format!("✎ {head} is signed by its contributor and a maintainer"),
    }
}

fn verification_line(style: Style, verification: &Verification) -> String {
    let line = format!(
        "{} on {}: exit code {}, says {}",
        reveal_line(&verification.command.join(" "), 200),
        short(&verification.head_commit),
        verification.exit_code,
        one_line(&verification.verifier, 80)
    );
    if verification.exit_code == 0 {
        style.good(&format!("✔ {line}"))
    } else {
        style.bad(&format!("✘ {line}"))
    }
}

fn grant_line(grant: &Grant) -> String {
    let left = allowance(&grant.limit.left(&grant.spent));
    format!("grant {} of {}: {left} left", grant.id, one_line(&grant.owner, 80))
}

/// The first digits of a commit.
pub(crate) fn short(commit: &Sha) -> &str {
    commit.get(..10).unwrap_or(commit)
}
