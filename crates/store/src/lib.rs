//! Forebay: store.
