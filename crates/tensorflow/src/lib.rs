//! Takes variables of TensorFlow while a training step still runs.
//!
//! A train step of TensorFlow is a graph. [`register`] adds an operation to the process's TensorFlow, `ForebayFinal`,
//! that a graph can run once the last write to a variable is done. In a step for which a [`Watch`] is armed, the
//! operation keeps a reference to the variable's buffer and queues it for a thread, which copies and digests it while
//! the step goes on.
//!
//! TensorFlow never writes to a buffer that somebody else holds. So the copied bytes stay true to the buffer, and the
//! variable still has its value if, after the step, it still has that buffer: nobody could write there, and a buffer
//! that is held is not used for another tensor. [`EarlyCopy::finish`] makes that comparison.
//!
//! The operation is declared by TensorFlow's C interface, whose functions are looked up in the process. So one build
//! serves several versions of TensorFlow, and none is needed to build it.

mod api;
mod early;
mod op;

pub use api::Missing;
pub use early::{EarlyCopy, Target, Watch};
pub use op::{OP, register};
