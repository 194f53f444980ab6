//! Spawn an ACP agent, speak ACP v1 with it, translate its updates into AHP actions.
