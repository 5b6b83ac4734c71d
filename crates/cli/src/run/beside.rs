//! Clauses on a run's data loaders, whose samples their agent may have read and kept, and on its forks: figures that
//! tiers and the preload library do not count.

use forebay_settings::text;
use std::collections::BTreeSet;

use crate::run::{
    forks,
    loaders::{self, of_node},
};

/// The clauses; none where there was neither.
pub(crate) fn clauses(loaders: &[loaders::EpochEvent], forks: &[forks::ForkEvent]) -> Vec<String> {
    [of_loaders(loaders), of_forks(forks)].into_iter().flatten().collect()
}

fn of_loaders(told: &[loaders::EpochEvent]) -> Option<String> {
    let epochs = loaders::epochs(told);
    if epochs.is_empty() {
        return None;
    }
    let samples: u64 = told.iter().map(|rank| rank.samples).sum();
    let had = format!(
        "data loaders had {} in {}",
        text::counted(samples, "sample", "samples"),
        text::counted(epochs.len() as u64, "epoch", "epochs")
    );
    let (mut cached, mut uses, mut source_bytes) = (0, 0, 0);
    for of_node in epochs.values().filter_map(|ranks| of_node(ranks)) {
        cached += of_node.cached();
        uses += of_node.uses();
        source_bytes += of_node.figure("source_bytes");
    }
    Some(if uses > 0 {
        let (share, bytes) = (text::percent(cached, uses), text::bytes(source_bytes));
        format!("{had}: {share} of this node's were cached, and {bytes} read from the source")
    } else {
        had
    })
}

fn of_forks(told: &[forks::ForkEvent]) -> Option<String> {
    // A line is a rank's.
    let (mut taken, mut became) = (BTreeSet::new(), BTreeSet::new());
    for one in told {
        match one {
            forks::ForkEvent::Taken(state) => taken.insert((state.job.as_str(), state.epoch, state.step)),
            forks::ForkEvent::Became(clone) => became.insert((clone.job.as_str(), clone.epoch, clone.step)),
        };
    }
    let taken = (taken.len() as u64, "state was taken for clones", "states were taken for clones");
    let became = (became.len() as u64, "clone was made", "clones were made");
    let parts: Vec<String> = [taken, became]
        .into_iter()
        .filter(|(number, ..)| *number > 0)
        .map(|(number, one, many)| text::counted(number, one, many))
        .collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::run::{forks::tests::TAKEN, loaders::tests::LINE};

    fn told(rank: u32, epoch: u64) -> loaders::EpochEvent {
        let told = serde_json::from_str(LINE).expect("a line");
        loaders::EpochEvent { rank, epoch, ..told }
    }

    #[test]
    fn what_a_node_s_ranks_tell_of_their_agent_counts_once() {
        let ranks = [told(0, 3), told(1, 3), told(0, 4)];
        assert_eq!(
            clauses(&ranks, &[]),
            ["data loaders had 9,600 samples in 2 epochs: 25.0 % of this node's were cached, and 488 KiB read from the source"]
        );
        let alone = loaders::EpochEvent {
            agent: BTreeMap::new(),
            ..told(0, 3)
        };
        assert_eq!(clauses(&[alone], &[]), ["data loaders had 3,200 samples in 1 epoch"]);
    }

    #[test]
    fn ranks_of_a_job_are_one_fork() {
        let taken: forks::ForkEvent = serde_json::from_str(TAKEN).unwrap();
        let forks::ForkEvent::Taken(state) = taken.clone() else { panic!() };
        let other = forks::ForkEvent::Taken(forks::TakenState { rank: 1, ..state.clone() });
        let later = forks::ForkEvent::Taken(forks::TakenState { step: 8, ..state });
        assert_eq!(clauses(&[], &[taken.clone(), other.clone()]), ["1 state was taken for clones"]);
        assert_eq!(clauses(&[], &[taken, other, later]), ["2 states were taken for clones"]);
        assert!(clauses(&[], &[]).is_empty());
    }
}
