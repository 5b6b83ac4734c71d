//! Compares a listing with the files that exist and those that are staged. Looks at files, and changes nothing.

use std::collections::BTreeMap;

use crate::{
    Error,
    disk::{Dir, DirectoryTree, FetchedStat},
    fetch::Task,
    names::PathLayout,
    record::{FileRecord, ViewManifest, staged_name},
    store::Object,
};

/// Files of earlier attempts.
#[derive(Debug)]
pub(crate) struct Earlier<'a> {
    /// Contents of the view when it was last complete.
    pub(crate) manifest: Option<&'a ViewManifest>,
    /// Files staged since, by their staged names.
    pub(crate) journal: &'a BTreeMap<String, FileRecord>,
    /// True if files fetched since may not have reached the disk, so that their bytes are compared.
    pub(crate) is_doubtful: bool,
    /// True if the bytes of all existing files are compared.
    pub(crate) verify: bool,
}

/// Work to do for a listing.
#[derive(Debug, Default)]
pub(crate) struct FillPlan<'a> {
    /// Files in the view that are as listed.
    pub(crate) kept: Vec<FileRecord>,
    /// Staged files that only need their names.
    pub(crate) staged: Vec<FileRecord>,
    /// Objects to fetch.
    pub(crate) tasks: Vec<Task<'a>>,
    /// Files that the view had, or an earlier attempt may have named, and that the listing does not have; of one path,
    /// the file of the view comes last.
    pub(crate) vanished: Vec<FileRecord>,
    /// Number of files of the view that somebody else has altered or removed.
    pub(crate) altered: u64,
    /// True if the directories with an object of their own are those that the view had.
    pub(crate) has_same_directories: bool,
}

impl<'a> FillPlan<'a> {
    pub(crate) fn make(layout: &'a PathLayout, earlier: &Earlier<'_>, tree: &mut DirectoryTree, staged: &Dir) -> Result<Self, Error> {
        let mut plan = Self::default();
        for (path, object) in &layout.files {
            let name = staged_name(path, object);
            let noted = earlier.journal.get(&name);
            // A staged file did not get its name in the view: the file that has it is another version.
            if let Some(record) = noted
                && is_whole(staged, &name, record, earlier.is_doubtful || earlier.verify)?
            {
                plan.staged.push(record.clone());
                continue;
            }
            let known = earlier.manifest.and_then(|manifest| manifest.records.get(path));
            let (record, compare) = match (known.filter(|record| record.is_of(object)), noted) {
                (Some(record), _) => (Some(record), earlier.verify),
                (None, noted) => (noted, earlier.is_doubtful || earlier.verify),
            };
            let kept = match (record, tree.find(path, false)?) {
                (Some(record), Some((dir, last))) if is_whole(dir, last, record, compare)? => Some(record),
                _ => None,
            };
            if let Some(record) = kept {
                plan.kept.push(record.clone());
            } else {
                plan.altered += u64::from(known.is_some_and(|record| record.is_of(object)));
                plan.tasks.push(Task { path, object, name });
            }
        }
        plan.has_same_directories = earlier.manifest.is_some_and(|manifest| manifest.directories == layout.directories);
        // An attempt that ended between the first name and the manifest is only in its journal.
        let had = |record: &FileRecord| earlier.manifest.and_then(|manifest| manifest.records.get(&record.path)) == Some(record);
        let noted = earlier.journal.values().filter(|record| !had(record));
        let all = noted.chain(earlier.manifest.into_iter().flat_map(|manifest| manifest.records.values()));
        plan.vanished = all.filter(|record| !layout.files.contains_key(&record.path)).cloned().collect();
        Ok(plan)
    }

    /// Returns bytes and number of the files to fetch.
    pub(crate) fn missing(&self) -> (u64, u64) {
        (bytes_of(self.tasks.iter().map(|task| task.object)), self.tasks.len() as u64)
    }

    /// Returns whether the view is complete and current.
    pub(crate) fn is_nothing(&self) -> bool {
        self.tasks.is_empty() && self.staged.is_empty() && self.vanished.is_empty() && self.has_same_directories
    }
}

/// Returns whether a file is the fetched one, by size and time; and by its bytes, if `compare` is set.
fn is_whole(dir: &Dir, name: &str, record: &FileRecord, compare: bool) -> Result<bool, Error> {
    let expected = FetchedStat {
        size: record.size,
        modified_ms: record.modified_ms,
    };
    Ok(dir.stat(name)? == Some(expected) && (!compare || dir.checksum(name)? == record.checksum))
}

/// Returns the bytes of all objects. A store may report any sizes.
pub(crate) fn bytes_of<'a>(objects: impl Iterator<Item = &'a Object>) -> u64 {
    objects.fold(0, |sum, object| sum.saturating_add(object.size))
}
