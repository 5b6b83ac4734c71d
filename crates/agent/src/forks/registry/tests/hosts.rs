//! Jobs and clones whose ranks are on several hosts.

use super::*;

/// The fork of rank 1 of `trunk`, whose rank 0 is on another host.
fn apart(scope: ForkScope) -> Known {
    let mut known = Known::default();
    known.register(1, SECRET, place("trunk", 1, 2), false);
    let effects = known.fork(COMMAND, FORK, "trunk", Some(9), None, scope);
    let refused_for = refused(&effects).1;
    assert_eq!(refused_for.is_empty(), scope == ForkScope::Registered, "{refused_for}");
    known
}

#[test]
fn ranks_of_one_host_are_forked_at_a_step_that_all_hosts_have() {
    apart(ForkScope::All);
    let mut known = apart(ForkScope::Registered);
    let Effect::Want {
        at, is_agreed, is_awaited, ..
    } = known.take(11, FORK, 1, 2)[0].clone()
    else {
        panic!("it waits");
    };
    assert_eq!((at, is_agreed, is_awaited), (9, true, true));
    assert_eq!(known.offer(1, &[FORK], &offer(9, "a", "one")), [unwant(), give(11, "one")]);
    let exists = Effect::Tell {
        to: 11,
        tell: ForkResponse::Exists,
    };
    assert_eq!(known.loaded(11, read("a")), [exists]);
}

#[test]
fn ranks_of_a_clone_exist_once_those_of_all_hosts_have_loaded() {
    let mut known = trunk();
    known.fork(COMMAND, FORK, "trunk", None, None, ForkScope::Arriving);
    assert_eq!(known.take(11, FORK, 1, 2), [], "nobody knows which ranks are here");
    assert_eq!(known.gathered(COMMAND, &[1]), [want(0)]);
    assert!(refused(&known.take(10, FORK, 0, 2)).1.contains("rank 0 of this clone"));
    assert_eq!(known.offer(1, &[FORK], &offer(5, "a", "one")), [unwant(), give(11, "one")]);
    assert_eq!(known.loaded(11, read("a")), [], "ranks on other hosts may not have");
    assert_eq!(outcome(&known), (true, false));
    let exists = Effect::Tell {
        to: 11,
        tell: ForkResponse::Exists,
    };
    assert_eq!(known.confirm(COMMAND), [exists]);
    assert_eq!((outcome(&known), known.confirm(COMMAND)), ((true, true), vec![]));
}

#[test]
fn a_host_of_a_clone_of_another_number_of_ranks_gives_its_ranks_the_states_of_all() {
    let mut known = trunk();
    known.fork(COMMAND, FORK, "trunk", None, None, ForkScope::Arriving);
    assert_eq!(known.take(12, FORK, 2, 3), []);
    assert!(matches!(
        known.gathered(COMMAND, &[2])[..],
        [Effect::Want { is_awaited: false, .. }]
    ));
    assert!(refused(&known.take(10, FORK, 1, 3)).1.contains("rank 1 of this clone"));
    assert_eq!(known.offer(1, &[FORK], &offer(5, "a", "one")), [], "rank 0's state is missing");
    let Effect::Give { to, others, .. } = known.offer(0, &[FORK], &offer(5, "a", "zero"))[1].clone() else {
        panic!("the states are there");
    };
    assert_eq!((to, others), (12, vec!["one"]));
    assert_eq!(known.loaded(12, read("a")), [], "ranks on other hosts may not have");
    let exists = Effect::Tell {
        to: 12,
        tell: ForkResponse::Exists,
    };
    assert_eq!(known.confirm(COMMAND), [exists]);
}
