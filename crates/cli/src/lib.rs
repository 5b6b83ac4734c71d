//! Forebay: cli.
