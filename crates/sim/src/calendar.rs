//! Calendar of events: the next event, and its time.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::fmt::Debug;

use forebay_policy::ids::Node;

/// A future event. A `slot` is a sample on its way (see `flight`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorldEvent {
    /// A peer or the node's memory may begin to send.
    Send { slot: u32 },
    /// The source's first byte arrives.
    FirstByte { slot: u32 },
    /// Reads of the source may have become due for a second try.
    HedgeDue { node: Node },
    /// The last byte has left the source or the peer.
    Sent { slot: u32 },
    /// The last byte is in the node.
    Received { slot: u32 },
    /// The read has ended for the rank that asked (later than `Received` for a slow rank).
    Arrived { slot: u32 },
    /// A sample has been preprocessed.
    Prepared { slot: u32 },
    /// The last byte of a copy that one node gives another has left it.
    HandedOver { to: Node, bytes: u32 },
    /// The ranks' step is over.
    StepEnd,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct CalendarEntry<E> {
    at_s: f64,
    sequence: u64,
    event: E,
}

impl<E: PartialEq> Eq for CalendarEntry<E> {}

impl<E: PartialEq> Ord for CalendarEntry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.at_s.total_cmp(&other.at_s).then(self.sequence.cmp(&other.sequence))
    }
}

impl<E: PartialEq> PartialOrd for CalendarEntry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Events by time; those of the same time in the order in which they were entered.
#[derive(Debug)]
pub(crate) struct Calendar<E = WorldEvent> {
    entries: BinaryHeap<Reverse<CalendarEntry<E>>>,
    entered: u64,
    now_s: f64,
}

impl<E: PartialEq> Default for Calendar<E> {
    fn default() -> Self {
        Self {
            entries: BinaryHeap::new(),
            entered: 0,
            now_s: 0.0,
        }
    }
}

impl<E: Copy + Debug + PartialEq> Calendar<E> {
    /// Time of the event that was taken last.
    pub(crate) fn now_s(&self) -> f64 {
        self.now_s
    }

    /// Adds an event, which can't be in the past.
    pub(crate) fn enter(&mut self, at_s: f64, event: E) {
        debug_assert!(at_s >= self.now_s, "{event:?} at {at_s}, before {}", self.now_s);
        self.entered += 1;
        self.entries.push(Reverse(CalendarEntry {
            at_s,
            sequence: self.entered,
            event,
        }));
    }

    /// Takes the next event, and moves the clock to it.
    pub(crate) fn next(&mut self) -> Option<E> {
        let Reverse(entry) = self.entries.pop()?;
        self.now_s = entry.at_s;
        Some(entry.event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_then_in_the_order_entered() {
        let mut calendar = Calendar::default();
        calendar.enter(2.0, WorldEvent::StepEnd);
        calendar.enter(1.0, WorldEvent::Sent { slot: 1 });
        calendar.enter(1.0, WorldEvent::Sent { slot: 2 });
        assert_eq!(calendar.next(), Some(WorldEvent::Sent { slot: 1 }));
        assert_eq!(calendar.next(), Some(WorldEvent::Sent { slot: 2 }));
        assert!((calendar.now_s() - 1.0).abs() < f64::EPSILON);
        assert_eq!(calendar.next(), Some(WorldEvent::StepEnd));
        assert_eq!(calendar.next(), None);
    }
}
