//! Forebay: agent.
