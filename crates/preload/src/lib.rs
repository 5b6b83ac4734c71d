//! Forebay: preload.
