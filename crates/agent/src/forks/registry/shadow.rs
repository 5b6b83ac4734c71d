//! Shadow verification (`verify="shadow:N"`): a clone that has loaded its state takes N steps with the data of its
//! parent, and exists only if every entry of every rank is then equal on both sides.

use super::{Digests, Effects, Fork, ForkResponse, ForkStage, Peer, Registry, Role, refuse, tell};

impl<S: Clone> Registry<S> {
    /// Begins the verification, once all ranks of the clone have loaded their states: they go on, and so has the job.
    pub(super) fn begin_shadow(&mut self, number: u64) -> Effects<S> {
        let Some(fork) = self.forks.get_mut(&number) else {
            return Vec::new();
        };
        fork.stage = ForkStage::ShadowVerification;
        fork.offers.fill(None);
        let mut effects: Effects<S> = fork
            .takers
            .iter()
            .flatten()
            .map(|taker| tell(taker.peer, ForkResponse::Shadow))
            .collect();
        effects.extend(self.compare(number));
        effects
    }

    /// Takes the digests of a rank of the job that has taken its steps since these forks, or of a rank of a clone
    /// since it has loaded its state.
    pub(crate) fn repeated(&mut self, peer: Peer, numbers: &[u64], digests: &Digests) -> Effects<S> {
        match self.roles.get(&peer).cloned() {
            Some(Role::Rank { job, rank }) => {
                let mut effects = Vec::new();
                for number in numbers {
                    let expects = |fork: &&mut Fork<S>| fork.job == job && fork.shadow > 0 && fork.is_open();
                    if let Some(fork) = self.forks.get_mut(number).filter(expects)
                        && let Some(after) = fork.after.get_mut(rank)
                    {
                        *after = Some(digests.clone());
                        effects.extend(self.compare(*number));
                    }
                }
                effects
            }
            Some(Role::Receiver { fork: number, rank }) => {
                let is_verifying = |fork: &&mut Fork<S>| fork.stage == ForkStage::ShadowVerification;
                // One that has failed has been told so.
                if let Some(fork) = self.forks.get_mut(&number).filter(is_verifying)
                    && let Some(Some(taker)) = fork.takers.get_mut(rank)
                {
                    taker.after = Some(digests.clone());
                }
                self.compare(number)
            }
            _ => refuse(peer, "this connection is not a rank of a job or a clone"),
        }
    }

    /// Ends the verification, once all have taken their steps.
    fn compare(&mut self, number: u64) -> Effects<S> {
        let Some(fork) = self.forks.get(&number).filter(|fork| fork.stage == ForkStage::ShadowVerification) else {
            return Vec::new();
        };
        let both = fork.after.iter().zip(&fork.takers);
        let both: Vec<_> = both
            .filter_map(|(after, taker)| Some((after.as_ref()?, taker.as_ref()?.after.as_ref()?)))
            .collect();
        if both.len() < fork.after.len() {
            return Vec::new();
        }
        match both
            .iter()
            .enumerate()
            .find_map(|(rank, (parents, clones))| Some((rank, parents.difference(clones)?)))
        {
            None => self.finish(number),
            Some((rank, path)) => {
                let why = format!(
                    "{} steps later {path} is not the same in rank {rank} of the clone as in its parent's: do both see the same data, and is \
                     every operation deterministic (torch.use_deterministic_algorithms)?",
                    fork.shadow
                );
                self.fail(number, &why)
            }
        }
    }
}
