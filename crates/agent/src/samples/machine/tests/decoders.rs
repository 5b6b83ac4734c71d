//! Decoding threads at run time: a slow rank gets threads from fast ones within a few steps and gives them back, and
//! none starves.

use forebay_contract::request_ring::RankDecoding;
use forebay_policy::models::LearnedReads;
use forebay_policy::schedule::{ForebaySchedule, LobsterSchedule};

use super::*;

const OWN: u32 = 3;
const FAST_NS: u64 = 10_000_000;
/// Steps within which threads follow a change.
const FOLLOWS: u32 = 5;

/// Ranks in step that request, decode and train; the machine moves their threads.
struct Decoding {
    play: Play,
    given: Vec<u32>,
    steps: u64,
}

impl Decoding {
    fn new(ranks: u32, scheduler: Box<dyn Scheduler>) -> Self {
        let world = MachineWorld {
            ranks,
            batch: 1,
            scheduler: 5,
            ..roomy()
        };
        let mut play = Play::new(world, Vec::new());
        play.core = world.core_with(scheduler);
        for rank in 0..ranks as usize {
            while play.ask(rank) {}
        }
        Self {
            play,
            given: vec![0; ranks as usize],
            steps: 0,
        }
    }

    /// Begins a step of all ranks, whose threads take `ns` for a sample.
    fn step(&mut self, ns: &[u64]) {
        self.steps += 1;
        self.play.now_s += 0.1;
        let mut actions = Vec::new();
        for (rank, &sample_ns) in ns.iter().enumerate() {
            let decoding = RankDecoding {
                sample_ns,
                sample_bytes: 100,
                threads: OWN,
            };
            let (steps, epoch, iteration) = (self.steps, 0, 0);
            let step = RankStep { steps, epoch, iteration };
            for event in [MachineEvent::Decodes { rank, decoding }, MachineEvent::Stepped { rank, step }] {
                self.play.core.take(event, self.play.now_s, &mut actions);
            }
        }
        self.play.core.go_on(self.play.now_s, &mut actions);
        for action in actions {
            match action {
                MachineAction::GiveDecoders { rank, threads } => self.given[rank] = threads,
                other => self.play.carry_out(other),
            }
        }
    }
}

fn lobster(ranks: u32, of: fn(NodeModel) -> LobsterSchedule) -> Box<dyn Scheduler> {
    let (load, preprocessing) = LearnedReads::default().models(None, 8);
    Box::new(of(NodeModel {
        threads: 9,
        ranks,
        load,
        preprocessing,
        tau: 0.05,
    }))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]

    #[test]
    fn a_slow_rank_gets_threads_from_fast_ones_and_gives_them_back(
        ranks in 2..5_u32, slow in 0..4_u32, then in 0..4_u32, slower in 3..9_u64, schedule in 0..3_u8,
    ) {
        let scheduler = match schedule {
            0 => Box::new(ForebaySchedule::new(8, ranks, 0.05)) as Box<dyn Scheduler>,
            1 => lobster(ranks, LobsterSchedule::corrected),
            _ => lobster(ranks, LobsterSchedule::as_written),
        };
        let mut decoding = Decoding::new(ranks, scheduler);
        let even = vec![FAST_NS; ranks as usize];
        let mut of = |slow: Option<u32>| {
            let mut ns = even.clone();
            if let Some(slow) = slow {
                ns[(slow % ranks) as usize] *= slower;
            }
            for _ in 0..FOLLOWS {
                decoding.step(&ns);
                prop_assert!(decoding.given.iter().all(|&threads| threads > 0), "none starves: {:?}", decoding.given);
            }
            prop_assert!(decoding.given.iter().sum::<u32>() <= ranks * OWN + 8);
            Ok(decoding.given.clone())
        };
        prop_assert_eq!(of(None)?, vec![OWN; ranks as usize]);
        for slow in [slow, then] {
            let given = of(Some(slow))?;
            let rank = (slow % ranks) as usize;
            prop_assert!(
                (0..given.len()).all(|other| other == rank || given[other] < given[rank]),
                "rank {} is slow: {:?}", rank, given
            );
            prop_assert!(given[rank] > OWN);
        }
        let back = of(None)?;
        prop_assert!(back.iter().max().unwrap() - back.iter().min().unwrap() <= 1, "{:?}", back);
    }
}

#[test]
fn each_rank_keeps_its_own_threads_where_the_schedule_moves_none() {
    for scheduler in [
        Box::new(Static::new(8, 2)) as Box<dyn Scheduler>,
        Box::new(FirstCome::new(8)),
        Box::new(EarliestDeadline::new(8)),
        Box::new(schedule::DaliLike::new(8)),
    ] {
        let mut decoding = Decoding::new(2, scheduler);
        (0..FOLLOWS).for_each(|_| decoding.step(&[FAST_NS, 4 * FAST_NS]));
        assert_eq!(decoding.given, [0, 0]);
    }
}
