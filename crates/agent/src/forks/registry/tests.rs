//! Effects of the registry, message by message.

mod hosts;

use super::*;

/// A state is the name of a rank here.
type Known = Registry<&'static str>;

const COMMAND: Peer = 100;
const FORK: u64 = 77;
const SECRET: u64 = 9;

fn offer(step: u64, weight: &str, state: &'static str) -> RankState<&'static str> {
    RankState {
        reader: 0,
        epoch: 1,
        step,
        replicated: Digests::from_pairs([("weight", weight)]),
        state,
    }
}

fn place(job: &str, rank: u32, ranks: u32) -> RankIdentity {
    let job = job.into();
    let shadow = 0;
    RankIdentity { job, rank, ranks, shadow }
}

/// Digests that a rank of a clone has read.
fn read(weight: &str) -> Digests {
    Digests::from_pairs([("weight", weight)])
}

/// A job `trunk` of two ranks, peers 0 and 1.
fn trunk() -> Known {
    let mut known = Known::default();
    let (job, secret) = (|| "trunk".to_owned(), SECRET);
    let page = |to| Effect::JobPage { to, job: job(), secret };
    let opened = known.register(0, SECRET, place("trunk", 0, 2), false);
    assert_eq!(opened, [Effect::Open { job: job(), secret }, page(0)]);
    assert_eq!(known.register(1, SECRET + 1, place("trunk", 1, 2), false), [page(1)]);
    known
}

/// A fork of it, for which both ranks of the clone, peers 10 and 11, are waiting.
fn waiting() -> Known {
    let mut known = trunk();
    known.fork(COMMAND, FORK, "trunk", None, None, ForkScope::All);
    assert_eq!(known.take(10, FORK, 0, 2), []);
    assert_eq!(known.take(11, FORK, 1, 2), [want(0)]);
    known
}

fn want(at: u64) -> Effect<&'static str> {
    let job = "trunk".into();
    let is_awaited = at == 0;
    Effect::Want {
        job,
        fork: FORK,
        at,
        is_awaited,
        shadow: 0,
        is_agreed: false,
    }
}

fn unwant() -> Effect<&'static str> {
    let job = "trunk".into();
    Effect::Unwant { job, fork: FORK }
}

fn give(to: Peer, state: &'static str) -> Effect<&'static str> {
    let tell = ForkResponse::State {
        name: "trunk.1".into(),
        reader: 0,
        ranks: 2,
    };
    let others = vec![];
    Effect::Give { to, tell, state, others }
}

/// Returns the refused connections, and the reason of the last.
fn refused(effects: &[Effect<&'static str>]) -> (Vec<Peer>, String) {
    let mut last = String::new();
    let peers = effects.iter().filter_map(|effect| match effect {
        Effect::Tell {
            to,
            tell: ForkResponse::Refused(Refusal { why, .. }),
        } => {
            last.clone_from(why);
            Some(*to)
        }
        _ => None,
    });
    (peers.collect(), last)
}

fn outcome(known: &Known) -> (bool, bool) {
    match known.outcome(COMMAND).as_slice() {
        [
            Effect::Tell {
                tell: ForkResponse::Progress(outcome),
                ..
            },
        ] => (outcome.asked, outcome.is_over),
        other => panic!("{other:?}"),
    }
}

#[test]
fn p14_a_clone_exists_when_all_of_its_ranks_have_loaded() {
    let mut known = waiting();
    assert_eq!(outcome(&known), (true, false));
    assert_eq!(known.offer(0, &[FORK], &offer(5, "a", "zero")), []);
    assert_eq!(
        known.offer(1, &[FORK], &offer(5, "a", "one")),
        [unwant(), give(10, "zero"), give(11, "one")]
    );
    assert_eq!(known.loaded(11, read("a")), []);
    let exists = |to| Effect::Tell {
        to,
        tell: ForkResponse::Exists,
    };
    assert_eq!(known.loaded(10, read("a")), [exists(10), exists(11)]);
    assert_eq!(known.secrets, BTreeMap::from([(SECRET, 1)]), "the job alone still needs it");
    assert_eq!(outcome(&known), (true, true));
    assert_eq!([known.gone(10), known.gone(11), known.gone(COMMAND)], [vec![], vec![], vec![]]);
    known.measured(0, 10, None);
    known.measured(1, 12, None);
    let [job]: [JobLine; 1] = known.jobs().try_into().unwrap();
    assert_eq!((job.clones, job.bytes, job.ranks_here), (1, 22, 2));
    assert!(known.forks.is_empty());
}

#[test]
fn a_step_that_was_named_is_taken_before_the_clone_asks() {
    let mut known = trunk();
    let effects = known.fork(COMMAND, FORK, "trunk", Some(9), None, ForkScope::All);
    assert_eq!(effects[0], want(9));
    known.offer(0, &[FORK], &offer(9, "a", "zero"));
    assert_eq!(known.offer(1, &[FORK], &offer(9, "a", "one")), [unwant()]);
    assert_eq!(outcome(&known), (false, false));
    // The job may be gone by then, and its name taken; its secret stays.
    known.gone(0);
    assert_eq!(known.gone(1), [Effect::Shut { job: "trunk".into() }]);
    assert_eq!(known.jobs(), []);
    known.register(2, SECRET + 1, place("trunk", 0, 1), false);
    assert_eq!(known.take(11, FORK, 1, 2), [give(11, "one")]);
    assert_eq!(known.take(10, FORK, 0, 2), [give(10, "zero")]);
    assert_eq!(known.gone(COMMAND).last(), Some(&Effect::Forget { secret: SECRET }));
}

#[test]
fn ranks_that_rejoin_are_asked_once_all_of_them_look() {
    let mut known = Known::default();
    known.register(0, SECRET, place("trunk", 0, 2), true);
    let (peers, why) = refused(&known.fork(COMMAND, FORK, "trunk", None, None, ForkScope::All));
    assert_eq!(peers, [COMMAND]);
    assert!(
        why.contains("the fork agent was replaced, and 1 of the 2 ranks of trunk have come"),
        "{why}"
    );
    known.register(1, SECRET + 1, place("trunk", 1, 2), true);
    assert_eq!(
        known.fork(COMMAND, FORK, "trunk", Some(9), None, ForkScope::All).len(),
        1,
        "the answer alone"
    );
    assert_eq!(known.measured(0, 10, None), []);
    assert_eq!(known.measured(1, 10, None), [want(9)]);
    assert_eq!(known.measured(1, 11, None), [], "once");
    // One that goes and comes again, as a rank that is started again by itself.
    known.fork(101, 78, "trunk", None, None, ForkScope::All);
    known.take(10, 78, 0, 2);
    known.gone(1);
    known.register(1, SECRET + 2, place("trunk", 1, 2), false);
    let Effect::Tell { tell, .. } = &known.fork(102, 79, "trunk", Some(9), None, ForkScope::All).remove(1) else {
        panic!()
    };
    assert!(matches!(tell, ForkResponse::Forking { fork: 79, .. }));
}

#[test]
fn f50_states_of_two_steps_or_that_differ_are_no_fork() {
    for (other, why) in [
        (offer(6, "a", "one"), "rank 0 at step 5 of epoch 1, rank 1 at step 6"),
        (offer(5, "b", "one"), "weight is not the same in rank 0 and rank 1"),
    ] {
        let mut known = waiting();
        known.offer(0, &[FORK], &offer(5, "a", "zero"));
        let effects = known.offer(1, &[FORK], &other);
        assert_eq!(effects[0], unwant());
        let (peers, told) = refused(&effects);
        assert_eq!(peers, [10, 11]);
        assert!(told.contains(why), "{told}");
        assert!(known.forks[&FORK].offers.iter().all(Option::is_none), "the states are released");
        assert_eq!(outcome(&known), (true, true));
    }
}

#[test]
fn f50_clones_that_have_read_other_bytes_in_place_are_no_clone() {
    let mut known = waiting();
    known.offer(0, &[FORK], &offer(5, "", "zero"));
    assert_eq!(known.offer(1, &[FORK], &offer(5, "", "one")).len(), 3, "nobody knows yet");
    assert_eq!(known.loaded(10, read("a")), []);
    let (peers, why) = refused(&known.loaded(11, read("b")));
    assert_eq!(peers, [10, 11]);
    assert!(why.contains("weight is not the same in rank 0 and rank 1"), "{why}");
    assert_eq!(outcome(&known), (true, true));
}

#[test]
fn a_clone_that_comes_late_is_awaited_from_then_on() {
    let mut known = trunk();
    known.fork(COMMAND, FORK, "trunk", Some(9), None, ForkScope::All);
    known.take(10, FORK, 0, 2);
    let job = "trunk".into();
    assert_eq!(known.take(11, FORK, 1, 2), [Effect::Awaited { job, fork: FORK }]);
}

#[test]
fn nobody_keeps_a_state_for_a_clone_that_has_failed() {
    let mut known = trunk();
    for (command, fork) in [(COMMAND, FORK), (101, 78)] {
        known.fork(command, fork, "trunk", Some(3), None, ForkScope::All);
    }
    known.gone(COMMAND);
    let leave = |state, reader| Effect::Leave { state, reader };
    assert_eq!(known.offer(0, &[FORK, 78], &offer(3, "a", "zero")), [leave("zero", 0)]);
    known.offer(1, &[FORK, 78], &offer(3, "a", "one"));
    let effects = known.gone(101);
    assert!(
        [leave("zero", 1), leave("one", 1)].iter().all(|leave| effects.contains(leave)),
        "{effects:?}"
    );
}

#[test]
fn f51_whoever_goes_before_the_clone_exists_ends_it_for_all() {
    // Before the states are taken: a rank of the job, of the clone, the command.
    for (peer, told) in [(0, vec![10, 11]), (1, vec![10, 11]), (10, vec![11]), (COMMAND, vec![10, 11])] {
        let mut known = waiting();
        known.offer(1, &[FORK], &offer(5, "a", "one"));
        let effects = known.gone(peer);
        assert!(effects.contains(&unwant()), "{peer}");
        assert_eq!(refused(&effects).0, told, "{peer}");
        let late = known.offer(0, &[FORK], &offer(5, "a", "zero"));
        let comes = |effect: &Effect<_>| matches!(effect, Effect::Give { .. } | Effect::Unwant { .. });
        assert!(!late.iter().any(comes), "nothing comes of it later");
    }
    // After: the job no longer matters.
    for (peer, told) in [(0, vec![]), (11, vec![10]), (COMMAND, vec![10, 11])] {
        let mut known = waiting();
        known.offer(0, &[FORK], &offer(5, "a", "zero"));
        known.offer(1, &[FORK], &offer(5, "a", "one"));
        known.loaded(11, read("a"));
        assert_eq!(refused(&known.gone(peer)).0, told, "{peer}");
        assert_eq!(known.loaded(10, read("a")).len(), if peer == 0 { 2 } else { 0 }, "{peer}");
    }
}

#[test]
fn a_state_that_can_not_be_taken_or_loaded_is_told_to_all() {
    let mut known = waiting();
    let (peers, why) = refused(&known.withhold(1, &[FORK, 3], "no memory"));
    assert_eq!(
        (peers, why.as_str()),
        (vec![10, 11], "rank 1 of trunk could not take its state: no memory")
    );
    let (peers, again) = refused(&known.take(12, FORK, 0, 2));
    assert_eq!((peers, again), (vec![12], why));
    let mut known = waiting();
    known.offer(0, &[FORK], &offer(5, "a", "zero"));
    known.offer(1, &[FORK], &offer(5, "a", "one"));
    let (peers, why) = refused(&known.failed(10, "damaged"));
    assert_eq!(
        (peers, why.as_str()),
        (vec![10, 11], "rank 0 of the clone could not load its state: damaged")
    );
}

#[test]
fn one_state_may_be_for_several_forks() {
    let mut known = trunk();
    for (command, fork) in [(COMMAND, FORK), (101, 78)] {
        known.fork(command, fork, "trunk", Some(3), None, ForkScope::All);
    }
    known.offer(0, &[FORK, 78], &offer(3, "a", "zero"));
    assert_eq!(known.offer(1, &[FORK, 78], &offer(3, "a", "one")).len(), 2);
    assert_eq!(known.take(10, FORK, 0, 2), [give(10, "zero")]);
    let Effect::Give { tell, state, .. } = &known.take(20, 78, 0, 2)[0] else {
        panic!()
    };
    assert_eq!(*state, "zero");
    assert_eq!(
        *tell,
        ForkResponse::State {
            name: "trunk.2".into(),
            reader: 1,
            ranks: 2
        }
    );
}

#[test]
fn a_clones_name_is_none_that_an_earlier_jobs_clone_still_has() {
    let name = |known: &mut Known, command: Peer| match known.fork(command, command, "trunk", None, None, ForkScope::All).last() {
        Some(Effect::Tell {
            tell: ForkResponse::Forking { name, .. },
            ..
        }) => name.clone(),
        other => panic!("{other:?}"),
    };
    let mut known = trunk();
    known.register(20, SECRET + 1, place("trunk.1", 0, 1), false);
    assert_eq!(name(&mut known, COMMAND), "trunk.2");
    // The job ends and is started again; that fork's command has not ended.
    known.gone(0);
    known.gone(1);
    known.register(0, SECRET + 2, place("trunk", 0, 1), false);
    assert_eq!(name(&mut known, 101), "trunk.3");
    known.gone(COMMAND);
    assert_eq!(name(&mut known, 102), "trunk.4", "it counts on");
}

#[test]
fn what_makes_no_sense_is_refused_with_the_mend() {
    let mut known = trunk();
    let why = |effects: Effects<&'static str>, text: &str| {
        let (peers, why) = refused(&effects);
        assert!(peers.len() == 1 && why.contains(text), "{why:?} should have {text:?}");
    };
    for name in ["", ".x", "a/b", "../x", "x\0", "ls", &"x".repeat(JOB_NAME_BYTES_MAX + 1)] {
        why(known.register(2, 1, place(name, 0, 1), false), "a job can't be named");
    }
    why(known.register(2, 1, place("trunk", 0, 2), false), "name this one otherwise");
    why(known.register(2, 1, place("trunk", 0, 3), false), "with 2 ranks");
    why(known.register(2, 1, place("other", 1, 1), false), "rank 1 of 1");
    why(
        known.fork(2, 1, "nobody", None, None, ForkScope::All),
        "no job 'nobody' that can be forked trains on this node; there are: trunk",
    );
    why(known.take(2, 1, 0, 2), "this fork is over");
    why(known.loaded(2, read("a")), "not a rank of a clone");
    why(known.offer(2, &[1], &offer(1, "a", "x")), "not a rank of a job");
    why(known.outcome(2), "no fork");
    known.fork(COMMAND, FORK, "trunk", None, None, ForkScope::All);
    why(known.take(2, FORK, 0, 0), "0 ranks: there can be 1 to 1024");
    why(known.take(2, FORK, 2, 2), "a new fork");
    known.take(2, FORK, 0, 2);
    why(
        known.take(3, FORK, 1, 3),
        "another rank of this clone said that it has 2 ranks, this one says 3 ranks",
    );
    why(known.take(3, FORK, 0, 2), "a new fork");
    for number in 0..FORKS_PER_JOB_MAX as u64 - 1 {
        known.fork(200 + number, 200 + number, "trunk", None, None, ForkScope::All);
    }
    why(
        known.fork(4, 4, "trunk", None, None, ForkScope::All),
        "wait until one has its state",
    );
    known.gone(1);
    why(known.fork(4, 4, "trunk", None, None, ForkScope::All), "1 of the 2 ranks");
}

/// A clone of `trunk` whose ranks, peers 10 and 11, have loaded their states, and are to take three steps.
fn under_verification() -> Known {
    let mut known = trunk();
    known.fork(COMMAND, FORK, "trunk", None, Some(3), ForkScope::All);
    known.take(10, FORK, 0, 2);
    let wanted = known.take(11, FORK, 1, 2);
    assert!(matches!(wanted[0], Effect::Want { shadow: 3, .. }), "{wanted:?}");
    known.offer(0, &[FORK], &offer(5, "a", "zero"));
    known.offer(1, &[FORK], &offer(5, "a", "one"));
    known.loaded(10, read("a"));
    let begins = |to| Effect::Tell {
        to,
        tell: ForkResponse::Shadow,
    };
    assert_eq!(known.loaded(11, read("a")), [begins(10), begins(11)]);
    assert_eq!(outcome(&known), (true, false));
    known
}

#[test]
fn p14_a_clone_under_verification_exists_when_all_entries_are_the_same_some_steps_later() {
    let mut known = under_verification();
    // The parent may be ahead of its clone, or behind, and may end as soon as it has said what it has.
    assert_eq!(known.repeated(0, &[FORK], &read("b")), []);
    assert_eq!(known.gone(0), []);
    assert_eq!(known.repeated(11, &[], &read("c")), []);
    assert_eq!(known.repeated(10, &[], &read("b")), []);
    let exists = |to| Effect::Tell {
        to,
        tell: ForkResponse::Exists,
    };
    assert_eq!(known.repeated(1, &[FORK, 3], &read("c")), [exists(10), exists(11)]);
    assert_eq!(outcome(&known), (true, true));
    assert_eq!(known.repeated(1, &[FORK], &read("d")), [], "that is over");
}

#[test]
fn f50_a_clone_that_takes_other_steps_than_its_parent_is_none() {
    let mut known = under_verification();
    for (peer, number, digest) in [(0, FORK, "b"), (10, 0, "b"), (11, 0, "d")] {
        assert_eq!(known.repeated(peer, &[number], &read(digest)), []);
    }
    let (peers, why) = refused(&known.repeated(1, &[FORK], &read("c")));
    assert_eq!(peers, [10, 11]);
    assert!(
        why.starts_with("3 steps later weight is not the same in rank 1 of the clone as in its parent's"),
        "{why}"
    );
    assert_eq!(outcome(&known), (true, true));
}

#[test]
fn f51_whoever_goes_under_verification_ends_it_for_all() {
    for (peer, told) in [(0, vec![10, 11]), (10, vec![11]), (COMMAND, vec![10, 11])] {
        let mut known = under_verification();
        assert_eq!(refused(&known.gone(peer)).0, told, "{peer}");
        assert_eq!(known.repeated(1, &[FORK], &read("c")), [], "nothing comes of it later");
    }
    let mut known = under_verification();
    let (peers, why) = refused(&known.withhold(1, &[FORK], "no memory"));
    assert_eq!(
        (peers, why.as_str()),
        (vec![10, 11], "rank 1 of trunk could not take its state: no memory")
    );
}

#[test]
fn clones_are_under_verification_where_their_job_says_so_and_their_command_does_not() {
    let mut known = Known::default();
    let shadow = 2;
    let asked = place("trunk", 0, 1);
    known.register(0, SECRET, RankIdentity { shadow, ..asked }, false);
    for (command, said, expected) in [(COMMAND, None, 2), (101, Some(0), 0), (102, Some(5), 5)] {
        let told = known.fork(command, command, "trunk", None, said, ForkScope::All);
        let Some(Effect::Tell {
            tell: ForkResponse::Forking { shadow, .. },
            ..
        }) = told.last()
        else {
            panic!("{told:?}")
        };
        assert_eq!(*shadow, expected);
    }
}

#[test]
fn a_clone_of_another_number_of_ranks_gets_rank_0s_state_copied_and_what_describes_the_others() {
    for ranks in [1, 3] {
        let mut known = trunk();
        known.fork(COMMAND, FORK, "trunk", None, None, ForkScope::All);
        let mut wanted = vec![];
        for rank in 0..ranks {
            wanted = known.take(10 + u64::from(rank), FORK, rank, ranks);
        }
        let is_copied = |effect: &Effect<_>| matches!(effect, Effect::Want { is_awaited: false, .. });
        assert!(wanted.len() == 1 && is_copied(&wanted[0]), "{wanted:?}");
        known.offer(0, &[FORK], &offer(5, "a", "zero"));
        let given = known.offer(1, &[FORK], &offer(5, "a", "one"));
        assert_eq!(given.len() as u32, 1 + ranks);
        for effect in &given[1..] {
            let Effect::Give { state, others, tell, .. } = effect else {
                panic!("{effect:?}")
            };
            assert_eq!((*state, others.as_slice()), ("zero", ["one"].as_slice()));
            assert!(matches!(tell, ForkResponse::State { ranks: 2, .. }));
        }
        for rank in 0..ranks - 1 {
            assert_eq!(known.loaded(10 + u64::from(rank), read("a")), []);
        }
        assert_eq!(known.loaded(9 + u64::from(ranks), read("a")).len() as u32, ranks);
        assert_eq!(outcome(&known), (true, true));
    }
}

#[test]
fn a_clone_of_another_number_of_ranks_is_not_compared_step_by_step() {
    let mut known = trunk();
    known.fork(COMMAND, FORK, "trunk", Some(9), Some(3), ForkScope::All);
    let (peers, why) = refused(&known.take(10, FORK, 0, 1));
    assert_eq!(peers, [10]);
    assert!(
        why.starts_with("trunk has 2 ranks, this program 1 rank: other ranks do not take its steps"),
        "{why}"
    );
    assert_eq!(known.take(10, FORK, 0, 2), []);
    // And one that comes late is not waited for to read in place.
    let mut known = trunk();
    known.fork(COMMAND, FORK, "trunk", Some(9), None, ForkScope::All);
    assert_eq!(known.take(10, FORK, 0, 1), []);
}

#[test]
fn a_job_whose_ranks_have_drifted_apart_before_its_first_point_is_not_forked() {
    let mut known = trunk();
    known.measured(0, 10, Some(read("a")));
    assert_eq!(
        known.fork(COMMAND, FORK, "trunk", None, None, ForkScope::All).len(),
        1,
        "nobody knows yet"
    );
    known.measured(1, 10, Some(read("b")));
    let (_, why) = refused(&known.fork(101, 78, "trunk", None, None, ForkScope::All));
    let expected = "trunk can't be forked: at its first point weight is not the same in rank 0 and rank 1";
    assert!(why.starts_with(expected), "{why}");
    // Ranks that begin again are compared again.
    for rank in [0, 1] {
        known.gone(rank);
        known.register(rank, SECRET + rank, place("trunk", rank as u32, 2), false);
    }
    known.measured(0, 10, Some(read("a")));
    known.measured(1, 10, Some(read("a")));
    assert_eq!(known.fork(102, 79, "trunk", None, None, ForkScope::All).len(), 1);
    // Of one that rejoins later nothing more is said.
    known.measured(0, 11, None);
    known.measured(1, 11, None);
    assert_eq!(known.fork(103, 80, "trunk", None, None, ForkScope::All).len(), 1);
}

#[test]
fn a_command_is_told_how_far_its_clone_is() {
    let mut known = trunk();
    known.fork(COMMAND, FORK, "trunk", None, None, ForkScope::All);
    let stands = |known: &Known| {
        let outcome = known.forks[&FORK].progress();
        (outcome.ranks, outcome.here, outcome.taken, outcome.loaded)
    };
    assert_eq!(stands(&known), (0, 0, false, 0));
    known.take(10, FORK, 0, 2);
    assert_eq!(stands(&known), (2, 1, false, 0));
    known.take(11, FORK, 1, 2);
    known.offer(0, &[FORK], &offer(5, "a", "zero"));
    assert_eq!(stands(&known), (2, 2, false, 0));
    known.offer(1, &[FORK], &offer(5, "a", "one"));
    known.loaded(11, read("a"));
    assert_eq!(stands(&known), (2, 2, true, 1));
}

#[test]
fn a_job_of_another_host_is_not_listed_and_its_clone_has_a_name_of_this_host() {
    let mut known = trunk();
    known.fork(COMMAND, FORK, "trunk", None, None, ForkScope::All);
    let guest = "trunk@4711";
    known.register(20, SECRET + 2, place(guest, 0, 1), false);
    let forked = known.fork(COMMAND + 1, FORK + 1, guest, None, Some(0), ForkScope::All);
    let Some(Effect::Tell {
        tell: ForkResponse::Forking { name, .. },
        ..
    }) = forked.last()
    else {
        panic!("{forked:?}")
    };
    assert_eq!(name, "trunk.2", "a clone of this host's job is called trunk.1");
    let listed: Vec<_> = known.jobs().into_iter().map(|job| job.job).collect();
    assert_eq!(listed, ["trunk"]);
    // The command that registered it forks it once, and nobody else does.
    let (peers, why) = refused(&known.fork(COMMAND + 2, FORK + 2, guest, None, None, ForkScope::All));
    assert_eq!(peers, [COMMAND + 2]);
    assert!(why.contains("by --from HOST"), "{why}");
    let (_, why) = refused(&known.fork(COMMAND + 3, FORK + 3, "twig", None, None, ForkScope::All));
    assert!(why.ends_with("there are: trunk"), "{why}");
    let (_, why) = refused(&known.register(30, SECRET + 3, place("trunk@host", 0, 1), false));
    assert!(why.contains("can't be named 'trunk@host'"), "{why}");
}

#[test]
fn f51_a_fork_whose_step_is_over_is_refused_at_all_ranks_with_the_reason() {
    let mut known = waiting();
    let refusal = Refusal::new(RefusalKind::Passed, "--at 7: trunk is at step 9 already");
    let told = |to| Effect::Tell {
        to,
        tell: ForkResponse::Refused(refusal.clone()),
    };
    assert_eq!(known.refuse_all(FORK, &refusal), [unwant(), told(10), told(11)]);
    assert_eq!(known.refuse_all(FORK, &refusal), [], "once");
}
