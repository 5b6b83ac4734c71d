use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::*;
use crate::drawn;

const NODES: Node = 3;
const SAMPLES: u32 = 8;
/// Steps of an epoch of these samples, one a rank and step.
const ITERATIONS: Iteration = 3;

fn deal(samples: u32, world: u32, batch: u32) -> Deal {
    Deal::new(samples, world, batch).expect("a deal")
}

#[derive(Clone, Copy, Debug)]
enum WindowMove {
    /// Opens a use this many steps after the epoch's first.
    Open {
        node: Node,
        sample: Sample,
        step: Iteration,
        of_copy: bool,
        kept_bytes: u64,
    },
    Arrive(usize),
    Close(usize),
    /// Begins an epoch; this many uses of the one before end later.
    Begin(usize),
}

/// Few samples, so that uses of one meet.
fn moves() -> impl Strategy<Value = Vec<WindowMove>> {
    let open = (0..NODES, 0..SAMPLES, 0..2 * ITERATIONS, any::<bool>(), 0..120_u64);
    let one = prop_oneof![
        8 => open.prop_map(|(node, sample, step, of_copy, kept_bytes)| WindowMove::Open { node, sample, step, of_copy, kept_bytes }),
        5 => any::<usize>().prop_map(WindowMove::Arrive),
        5 => any::<usize>().prop_map(WindowMove::Close),
        1 => (0..4_usize).prop_map(WindowMove::Begin),
    ];
    proptest::collection::vec(one, 0..200)
}

/// A window beside a plain list of the uses that are under way.
struct CheckedWindow {
    window: ResidencyWindow,
    cluster: Cluster,
    sizes: Vec<u32>,
    /// Bytes reserved for each sample while its size is unknown.
    reserved: Vec<u32>,
    known: Vec<bool>,
    /// Uses under way, each with true if it is of a copy.
    uses: Vec<(Access, bool)>,
    due: Vec<u64>,
    epoch: EpochNumber,
}

fn step_of(access: Access) -> u64 {
    u64::from(access.epoch * ITERATIONS + access.iteration)
}

impl CheckedWindow {
    fn new(sizes: Vec<u32>, share: WindowShare) -> Self {
        let cluster = Cluster {
            nodes: NODES,
            gpus: 1,
            cache_bytes: 130,
            reserved_bytes: 0,
        };
        let mut window = ResidencyWindow::new(cluster, SAMPLES, 1, share);
        window.begin(0, deal(SAMPLES, cluster.world(), 1));
        Self {
            window,
            cluster,
            sizes,
            reserved: vec![0; SAMPLES as usize],
            known: vec![false; SAMPLES as usize],
            uses: Vec::new(),
            due: vec![0; usize::from(NODES)],
            epoch: 0,
        }
    }

    fn bytes_of(&self, sample: Sample) -> u64 {
        let from = if self.known[sample as usize] { &self.sizes } else { &self.reserved };
        u64::from(from[sample as usize])
    }

    fn bytes(&self, node: Node) -> u64 {
        let of_node = self.uses.iter().filter(|(access, of_copy)| access.node == node && !of_copy);
        of_node.map(|(access, _)| self.bytes_of(access.sample)).sum()
    }

    fn in_use(&self, sample: Sample) -> bool {
        self.uses.iter().any(|(access, _)| access.sample == sample)
    }

    fn mean(&self) -> f64 {
        let known: Vec<_> = self.sizes.iter().zip(&self.known).filter(|(_, known)| **known).collect();
        let sum: u32 = known.iter().map(|(bytes, _)| **bytes).sum();
        f64::from(sum) / known.len().max(1) as f64
    }

    fn open(&mut self, access: Access, of_copy: bool, kept_bytes: u64) -> Result<(), TestCaseError> {
        let (node, sample) = (usize::from(access.node), access.sample as usize);
        if of_copy && self.known[sample] {
            self.window.open_copy(access);
            self.uses.push((access, true));
            return Ok(());
        }
        if !self.known[sample] && !self.in_use(access.sample) {
            self.reserved[sample] = self.mean() as u32;
        }
        let after = self.bytes(access.node) + self.bytes_of(access.sample);
        let fits = after <= self.window.limit_bytes() && kept_bytes + after <= self.cluster.cache_bytes;
        let is_let_in = self.window.open_window(access, kept_bytes);
        prop_assert_eq!(is_let_in, fits || step_of(access) <= self.due[node], "{:?}", access);
        if is_let_in {
            self.uses.push((access, false));
        }
        Ok(())
    }

    fn arrive(&mut self, access: Access) {
        self.window.arrived(access, self.sizes[access.sample as usize]);
        self.known[access.sample as usize] = true;
    }

    /// Ends a use whose bytes have arrived. Of several uses of a sample by a node, any may be the one that ends.
    fn close(&mut self, access: Access) -> Result<(), TestCaseError> {
        self.arrive(access);
        let of_copy = self.window.close(access) == HeldMemory::Copy;
        let ended =
            |(other, other_of_copy): &(Access, bool)| (other.node, other.sample, *other_of_copy) == (access.node, access.sample, of_copy);
        let Some(at) = self.uses.iter().position(ended) else {
            return Err(TestCaseError::fail(format!("{access:?} was of a copy: {of_copy}")));
        };
        self.uses.swap_remove(at);
        let due = &mut self.due[usize::from(access.node)];
        *due = (*due).max(step_of(access) + 1);
        Ok(())
    }

    fn make(&mut self, one: WindowMove) -> Result<(), TestCaseError> {
        match one {
            WindowMove::Open {
                node,
                sample,
                step,
                of_copy,
                kept_bytes,
            } => {
                let (iteration, epoch) = (step % ITERATIONS, self.epoch + step / ITERATIONS);
                let access = Access {
                    node,
                    sample,
                    iteration,
                    epoch,
                };
                self.open(access, of_copy, kept_bytes)?;
            }
            WindowMove::Arrive(nth) if !self.uses.is_empty() => self.arrive(self.uses[nth % self.uses.len()].0),
            WindowMove::Close(nth) if !self.uses.is_empty() => self.close(self.uses[nth % self.uses.len()].0)?,
            WindowMove::Begin(late) => {
                let of_epoch = self
                    .uses
                    .iter()
                    .map(|(access, _)| *access)
                    .filter(|access| access.epoch == self.epoch);
                for access in of_epoch.skip(late).collect::<Vec<_>>() {
                    self.close(access)?;
                }
                self.epoch += 1;
                self.window.begin(self.epoch, deal(SAMPLES, self.cluster.world(), 1));
            }
            WindowMove::Arrive(_) | WindowMove::Close(_) => {}
        }
        Ok(())
    }

    fn check(&self) -> Result<(), TestCaseError> {
        for node in 0..NODES {
            let bytes = self.bytes(node);
            prop_assert_eq!(self.window.bytes(node), bytes);
            let memory = self.cluster.cache_bytes;
            for kept_bytes in 0..=memory + 1 {
                let is_over = kept_bytes + bytes > memory;
                prop_assert_eq!(self.window.is_over(node, kept_bytes), is_over);
                let is_left = !is_over && kept_bytes + self.window.limit_bytes() <= memory;
                prop_assert_eq!(self.window.leaves(node, kept_bytes), is_left);
            }
        }
        for sample in 0..SAMPLES {
            prop_assert_eq!(self.window.in_use(sample), self.in_use(sample));
            if self.known[sample as usize] || self.in_use(sample) {
                prop_assert_eq!(u64::from(self.window.size(sample)), self.bytes_of(sample));
            }
        }
        prop_assert_eq!(self.window.known() as usize, self.known.iter().filter(|known| **known).count());
        prop_assert!((self.window.mean_bytes() - self.mean()).abs() < 1e-9);
        Ok(())
    }
}

proptest! {
    #![proptest_config(drawn::cases(400))]

    /// Over any overlapping uses, a window holds the bytes of its uses, lets in a sample that fits or is due, and
    /// knows the samples in use.
    #[test]
    fn a_window_is_the_list_of_its_uses(moves in moves(), sizes in proptest::collection::vec(1..40_u32, SAMPLES as usize), whole: bool) {
        let mut checked = CheckedWindow::new(sizes, if whole { WindowShare::Whole } else { WindowShare::Bounded });
        for one in moves {
            checked.make(one)?;
            checked.check()?;
        }
    }
}

/// Returns the limit of a window over samples of these sizes, all known, ten a step.
fn limit_bytes(cache_bytes: u64, ahead: Iteration, sizes: &[u32], share: WindowShare) -> u64 {
    let cluster = Cluster {
        nodes: 1,
        gpus: 2,
        cache_bytes,
        reserved_bytes: 0,
    };
    let samples = sizes.len() as u32;
    let mut window = ResidencyWindow::new(cluster, samples, ahead, share);
    window.begin(0, deal(samples, cluster.world(), 5));
    for (sample, &bytes) in (0..).zip(sizes) {
        let access = Access {
            node: 0,
            sample,
            iteration: 0,
            epoch: 0,
        };
        assert!(window.open_window(access, 0), "what is due is let in");
        window.arrived(access, bytes);
        window.close(access);
    }
    assert_eq!((window.samples(), window.known(), window.ahead()), (samples, samples, ahead));
    assert_eq!(window.kept_limit_bytes(), cache_bytes - window.limit_bytes());
    window.limit_bytes()
}

#[test]
fn the_limit_is_what_is_fetched_ahead_and_within_w() {
    let limit = |cache_bytes, ahead, sizes: &[u32]| limit_bytes(cache_bytes, ahead, sizes, WindowShare::Bounded);
    let equal = [100; 200];
    // A step needs 1000 bytes. W is 2 % of the memory, 20,000 bytes, of which a sixteenth is left.
    assert_eq!(limit(1_000_000, 0, &equal), 1000);
    assert_eq!(limit(1_000_000, 4, &equal), 5000);
    assert_eq!(limit(1_000_000, 100, &equal), 20_000 - 1250);
    // W is four steps.
    assert_eq!(limit(100_000, 1, &equal), 2000);
    assert_eq!(limit(100_000, 4, &equal), 4000 - 250);
    assert_eq!(limit(1500, 4, &equal), 1500, "no more than there is");
    assert_eq!(limit_bytes(1_000_000, 4, &equal, WindowShare::Whole), 1_000_000);
}

#[test]
fn the_limit_leaves_the_largest_sample_of_w_and_half_of_it_at_most() {
    let limit = |bytes: u32| {
        let mut sizes = [100; 200];
        sizes[7] = bytes;
        limit_bytes(100_000, 100, &sizes, WindowShare::Bounded)
    };
    // W is forty samples of 104.5 or 149.5 bytes.
    assert_eq!(limit(1000), 4180 - 1000);
    assert_eq!(limit(10_000), 5980 - 2990);
}

#[test]
fn the_limit_allows_for_the_spread_of_sizes() {
    let sizes: Vec<u32> = (0..200).map(|sample| if sample % 2 == 0 { 50 } else { 150 }).collect();
    // Twenty samples of 100 bytes in the mean, each 50 away from it: three standard deviations.
    let spread = 3.0 * (20.0 * 2500.0_f64).sqrt();
    assert_eq!(limit_bytes(1_000_000, 1, &sizes, WindowShare::Bounded), 2000 + spread.ceil() as u64);
}
