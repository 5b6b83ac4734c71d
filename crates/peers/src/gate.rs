//! Admission of answers at a server: a few at a time, the most urgent first, and equally urgent ones by nodes in
//! turn.

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap},
    rc::Rc,
    time::{Duration, Instant},
};

use tokio::{sync::oneshot, time::timeout};

/// Admits a bounded number of answers at a time. Lives in one thread.
#[derive(Debug)]
pub(crate) struct Gate(Rc<RefCell<State>>);

#[derive(Debug)]
struct State {
    at_work: usize,
    at_work_max: usize,
    waiting_max: usize,
    /// Waiting requests, by turn, then by how often their node was admitted, then by arrival.
    waiting: BTreeMap<(u64, u64, u64), (u16, oneshot::Sender<()>)>,
    arrivals: u64,
    admitted: HashMap<u16, u64>,
    /// Smoothed time of an answer, in seconds.
    takes_s: f64,
}

/// The right to work on an answer. The next one is admitted when it is dropped.
#[derive(Debug)]
pub(crate) struct Pass {
    state: Rc<RefCell<State>>,
    since: Instant,
}

impl Gate {
    pub(crate) fn new(at_work_max: usize, waiting_max: usize) -> Self {
        Self(Rc::new(RefCell::new(State {
            at_work: 0,
            at_work_max,
            waiting_max,
            waiting: BTreeMap::new(),
            arrivals: 0,
            admitted: HashMap::new(),
            takes_s: 0.0,
        })))
    }

    /// Waits until an answer for `node` may begin. Returns `None` where that is not to be expected within the asker's
    /// time: at once if what waits already takes longer, else when the time is over.
    pub(crate) async fn enter(&self, node: u16, turn: u64, within: Duration) -> Option<Pass> {
        let (key, admitted) = {
            let mut state = self.0.borrow_mut();
            if state.at_work < state.at_work_max {
                return Some(self.admit(&mut state, node));
            }
            #[expect(clippy::cast_precision_loss, reason = "a few")]
            let rounds = (state.waiting.len() + 1) as f64 / state.at_work_max as f64;
            if state.waiting.len() >= state.waiting_max || rounds * state.takes_s > within.as_secs_f64() {
                return None;
            }
            let (sender, receiver) = oneshot::channel();
            state.arrivals += 1;
            let key = (turn, state.admitted.get(&node).copied().unwrap_or(0), state.arrivals);
            state.waiting.insert(key, (node, sender));
            (key, receiver)
        };
        if let Ok(Ok(())) = timeout(within, admitted).await {
            return Some(self.pass());
        }
        // Who was admitted in the very moment in which the time was over passes that on.
        let is_waiting = self.0.borrow_mut().waiting.remove(&key).is_some();
        if !is_waiting {
            drop(self.pass());
        }
        None
    }

    fn admit(&self, state: &mut State, node: u16) -> Pass {
        state.at_work += 1;
        *state.admitted.entry(node).or_default() += 1;
        self.pass()
    }

    fn pass(&self) -> Pass {
        Pass {
            state: Rc::clone(&self.0),
            since: Instant::now(),
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut state = self.state.borrow_mut();
        state.takes_s = 0.9 * state.takes_s + 0.1 * self.since.elapsed().as_secs_f64();
        // The place goes to the next one that still waits.
        while let Some((_, (node, sender))) = state.waiting.pop_first() {
            if sender.send(()).is_ok() {
                *state.admitted.entry(node).or_default() += 1;
                return;
            }
        }
        state.at_work -= 1;
    }
}

#[cfg(test)]
mod tests {
    use tokio::{runtime::Builder, task::LocalSet};

    use super::*;

    fn run(test: impl Future<Output = ()>) {
        let runtime = Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(LocalSet::new().run_until(test));
    }

    const LONG: Duration = Duration::from_secs(10);

    #[test]
    fn the_most_urgent_goes_first_and_nodes_take_turns() {
        run(async {
            let gate = Rc::new(Gate::new(1, 8));
            let first = gate.enter(0, 9, LONG).await.unwrap();
            let order = Rc::new(RefCell::new(Vec::new()));
            let mut tasks = Vec::new();
            for (node, turn) in [(0, 7), (0, 7), (1, 7), (2, 3)] {
                let (gate, order) = (Rc::clone(&gate), Rc::clone(&order));
                tasks.push(tokio::task::spawn_local(async move {
                    let pass = gate.enter(node, turn, LONG).await.unwrap();
                    order.borrow_mut().push((node, turn));
                    drop(pass);
                }));
                tokio::task::yield_now().await;
            }
            drop(first);
            for task in tasks {
                task.await.unwrap();
            }
            assert_eq!(*order.borrow(), [(2, 3), (1, 7), (0, 7), (0, 7)]);
        });
    }

    #[test]
    fn who_can_not_begin_in_time_is_told_so_and_takes_no_place() {
        run(async {
            let gate = Gate::new(1, 8);
            let first = gate.enter(0, 1, LONG).await.unwrap();
            assert!(gate.enter(1, 1, Duration::from_millis(10)).await.is_none());
            drop(first);
            assert!(gate.enter(1, 1, Duration::ZERO).await.is_some(), "the place is free");
        });
    }

    #[test]
    fn beyond_the_bound_nobody_waits() {
        run(async {
            let gate = Rc::new(Gate::new(1, 1));
            let first = gate.enter(0, 1, LONG).await.unwrap();
            let waiting = tokio::task::spawn_local({
                let gate = Rc::clone(&gate);
                async move { gate.enter(1, 1, LONG).await.is_some() }
            });
            tokio::task::yield_now().await;
            assert!(gate.enter(2, 0, LONG).await.is_none());
            drop(first);
            assert!(waiting.await.unwrap());
        });
    }
}
