//! Admission of requests at a node that serves others: serve, or send the asker to a node that was served before.

/// Pieces that a node sends at the same moment at most.
const PIECES_MAX: usize = 8;
/// Pieces that a node sends at the same moment without sending askers to others. More would share its link, and each
/// would take longer.
const ALONE_MAX: usize = 1;

/// Decision about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Serve it, once there is a place.
    Serve,
    /// Refuse it, and name the nodes that were served the same range.
    Redirect,
}

/// Decides about a request for a piece of a large object. `at_work` is how many answers are being sent, `was_served`
/// whether another node was given the same piece.
///
/// A hot object leaves its owner about once: the owner gives each piece to one node, and sends later askers there.
pub const fn admit(at_work: usize, was_served: bool) -> Admission {
    if at_work < ALONE_MAX || (at_work < PIECES_MAX && !was_served) {
        Admission::Serve
    } else {
        Admission::Redirect
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_has_little_to_do_serves_everybody() {
        assert_eq!(admit(0, true), Admission::Serve);
        assert_eq!(admit(ALONE_MAX, true), Admission::Redirect);
        assert_eq!(admit(ALONE_MAX, false), Admission::Serve);
        assert_eq!(admit(PIECES_MAX, false), Admission::Redirect);
    }
}
