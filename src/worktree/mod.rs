//! Git worktrees, checkpoints, bundles and restore.
