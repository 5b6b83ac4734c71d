//! Copies of earlier runs: taken into the index as they come, servable once their directory has been swept (or at once, where
//! the user vouches for the source).

use std::sync::Arc;

use forebay_contract::{Entry, Identity};
use forebay_policy::{Action, CopyId, TierIndex, fill_first, retention};

use crate::{
    adopter::{self, Batch, Found, FoundAlias},
    clock::{boot_ns, unix_s},
    error::AgentError,
};

use super::Clerk;

/// How far adoption has come.
#[derive(Debug, Default)]
pub(super) struct Adoption {
    begun: bool,
    /// Tiers that are still being read.
    reading: usize,
    /// Copies whose source is not mounted now; looked at again when a run joins.
    unmounted: Vec<(usize, Found)>,
    /// Devices of the sources of what was adopted.
    devices: Vec<u64>,
}

impl Adoption {
    pub(super) const fn is_running(&self) -> bool {
        self.reading > 0
    }
}

impl Clerk {
    /// Begins adoption with the first run, in the background; with later ones, takes those copies whose source is mounted by now.
    pub(super) fn adopt_more(&mut self) {
        if self.adoption.begun {
            let waiting = std::mem::take(&mut self.adoption.unmounted);
            for (tier, found) in waiting {
                if self.adopt_one(tier, found).is_err() {
                    return;
                }
            }
            return;
        }
        self.adoption.begun = true;
        for (number, state) in self.tiers.iter().enumerate() {
            match adopter::start(number, Arc::clone(&state.tier), self.events.clone()) {
                Ok(()) => self.adoption.reading += 1,
                Err(error) => self.log.line(&format!("earlier copies are not adopted: {error}")),
            }
        }
    }

    /// Takes a batch.
    pub(super) fn adopted(&mut self, batch: Batch) -> Result<(), AgentError> {
        for found in batch.found {
            self.adopt_one(batch.tier, found)?;
        }
        for alias in batch.aliases {
            self.adopt_alias(&alias)?;
        }
        if let Some(ended) = batch.ended {
            self.adoption.reading = self.adoption.reading.saturating_sub(1);
            self.log.line(&format!("adoption of tier {}: {ended}", batch.tier));
            self.publish_room();
        }
        Ok(())
    }

    fn adopt_one(&mut self, tier: usize, found: Found) -> Result<(), AgentError> {
        if found.damaged || retention::is_due(found.last_used_unix_s, unix_s()) {
            self.remove_uncounted(tier, found.copy);
            return Ok(());
        }
        if !found.counted && !self.count_adopted(tier, found.copy, found.identity.size) {
            return Ok(());
        }
        let Some(dev) = self.mounts.device_of(&found.mount) else {
            self.adoption.unmounted.push((tier, Found { counted: true, ..found }));
            return Ok(());
        };
        let identity = Identity { dev, ..found.identity };
        // By its inode, or another file under the same name.
        let copied_again = self.names.of_file(&self.pages.index(), dev, identity.ino).is_some()
            || self.pages.index().find_kept(&joined(&found.dir, &found.name)).is_some();
        if copied_again || self.flight_of_file.contains_key(&(dev, identity.ino)) {
            // A program was faster.
            self.remove_copy(found.copy, tier, identity.size);
            return Ok(());
        }
        self.total.adopted += 1;
        if !self.adoption.devices.contains(&dev) {
            self.adoption.devices.push(dev);
        }
        let entry = Entry {
            directory: 0,
            name: &found.name,
            identity,
            attributes: found.attributes,
            copy: found.copy,
            tier,
            copy_ino: found.object.ino,
            copy_ctime: found.object.ctime,
            plain: false,
            inserted_at: boot_ns(),
            checked_at: 0,
        };
        self.insert(&found.dir, entry)
    }

    /// Another spelling of a copy that was adopted; one whose copy was not is left out.
    fn adopt_alias(&mut self, alias: &FoundAlias) -> Result<(), AgentError> {
        let index = self.pages.index();
        if index.find_kept(&joined(&alias.dir, &alias.name)).is_some() {
            return Ok(());
        }
        let record = self
            .adoption
            .devices
            .iter()
            .filter_map(|dev| self.names.of_file(&index, *dev, alias.ino))
            .filter_map(|number| index.record(number))
            .find(|record| record.copy() == alias.copy);
        let Some(entry) = record.and_then(|record| self.pages.writer_ref().entry(record)) else {
            return Ok(());
        };
        self.insert(
            &alias.dir,
            Entry {
                name: &alias.name,
                plain: false,
                inserted_at: boot_ns(),
                checked_at: 0,
                ..entry
            },
        )
    }

    /// Removes a copy that was never counted.
    fn remove_uncounted(&mut self, tier: usize, copy: u64) {
        if let Some(state) = self.tiers.get(tier)
            && let Err(error) = state.tier.remove(copy)
        {
            self.log.line(&format!("an old copy could not be removed: {error}"));
        }
    }

    /// Counts an adopted copy against the quota; one that is over it is removed.
    fn count_adopted(&mut self, tier: usize, copy: u64, size: u64) -> bool {
        let event = fill_first::Event::Adopt {
            copy: CopyId(copy),
            size,
            tier: TierIndex(tier),
        };
        let placed = matches!(fill_first::step(&mut self.policy, event), Action::Place { .. });
        let Some(state) = self.tiers.get_mut(tier) else { return false };
        if placed {
            state.files += 1;
        } else {
            self.remove_uncounted(tier, copy);
        }
        placed
    }

    /// Writes which directories were used, so that what nobody uses is found in later runs; then tidies the catalogues.
    pub(super) fn note_use(&mut self) {
        let now = unix_s();
        let index = self.pages.index();
        for (path, number) in &self.directories {
            let used = self.control.directory_stamp(*number) != 0;
            if !used || index.directory(*number).is_none() {
                continue;
            }
            for state in &self.tiers {
                // A full tier loses only the date of use.
                let _ = state.tier.mark_used(path, now);
            }
        }
        for state in &self.tiers {
            if !self.adoption.is_running()
                && self.adoption.begun
                && let Err(error) = state.tier.compact_if_due()
            {
                self.log.line(&format!("the catalogue could not be compacted: {error}"));
            }
        }
    }
}

fn joined(dir: &[u8], name: &[u8]) -> Vec<u8> {
    [dir, b"/", name].concat()
}
