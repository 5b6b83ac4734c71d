//! Lists of what the runs of a command have read: kept in files, and read ahead of the command's next run.
//!
//! The event loop collects what a run reads. The `recorder` reads and writes the files, the `openers` open what a list
//! names, and read parts of files into the page cache.

pub(crate) mod evidence;
pub mod file;
pub(crate) mod openers;
pub(crate) mod recorder;
