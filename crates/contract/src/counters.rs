//! Counters of a run, for the summary, the record and the tests. The list is the only one: its names are the keys of
//! the run's JSON record.

use crate::digest::digest_of;

/// Defines an enum whose variants have a name for records and a text for people.
macro_rules! named {
    ($(#[doc = $about:literal])+ $enum:ident {$($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)+}) => {
        $(#[doc = $about])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(usize)]
        pub enum $enum { $($(#[doc = $doc])+ $variant,)+ }

        impl $enum {
            /// All of them, in this order.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// Returns the key in records.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// Returns the text for a person.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc),+).trim_ascii(),)+ }
            }
        }
    };
}
pub(crate) use named;

named! {
/// A number that covered processes keep in the run page, in the order of [`Counter::ALL`].
Counter {
    /// processes that were covered
    Processes = "processes",
    /// opens under a source that went to the source and were handed to the agent
    HandedOver = "handed_over",
    /// bytes of the files that were handed to the agent
    HandedOverBytes = "handed_over_bytes",
    /// opens not handed to the agent, since its queue was full
    DroppedFull = "dropped_queue_full",
    /// opens not handed to the agent, since no agent answered
    DroppedNoAgent = "dropped_no_agent",
    /// opens outside every source
    Foreign = "pass_foreign",
    /// opened for writing
    Writing = "pass_writing",
    /// flags that a copy can't stand in for (O_PATH, O_DIRECTORY, O_NOFOLLOW, O_NOATIME, O_TMPFILE)
    Flags = "pass_flags",
    /// relative to a directory descriptor
    DirectoryDescriptor = "pass_directory_descriptor",
    /// stdio mode that a copy can't stand in for
    StdioMode = "pass_stdio_mode",
    /// path longer than the kernel's limit, or no current directory
    OddPath = "pass_odd_path",
    /// the copy could not be compared with the source in time, or since a program that is not covered ended
    Stale = "pass_stale",
    /// changed by a program on this node since it was copied
    Tombstoned = "pass_tombstoned",
    /// the source was asked and has changed since it was copied (freshness on_open), or this process may not read it
    /// any more
    SourceChanged = "pass_source_changed",
    /// the copy could not be opened, or was not the file that it had been
    CopyGone = "pass_copy_gone",
    /// the tier is switched off
    TierOff = "pass_tier_off",
    /// the source file is larger than any room left in the tiers
    NoRoom = "pass_no_room",
    /// shared while it changes: changed in place or locked by a program on this node, not long ago
    Live = "pass_live",
    /// not a regular file
    NotRegular = "pass_not_regular",
    /// opened by an unlisted name of a source, such as a symbolic link
    OtherName = "pass_other_name",
    /// excluded (--exclude)
    Excluded = "pass_excluded",
    /// the program is in another root or mount namespace
    OtherNamespace = "pass_other_namespace",
    /// shared memory could not be mapped, or is of another version
    NoPage = "pass_no_page",
    /// programs that are not covered and have ended: copies are compared with the source again
    UncoveredEnds = "uncovered_ends",
    /// changes on the file system of a source that were seen and set tombstones
    Tombstones = "tombstones",
    /// attribute changes through a redirected descriptor, carried out on the source
    AttributesForwarded = "attributes_forwarded",
    /// descriptors moved from a copy to the source, since the program locked the file or one beside it
    Locked = "locked",
    /// opens for reading under a source (hits and misses)
    SourceOpens = "source_opens",
    /// questions about names under a source (stat, access and similar calls)
    SourceStats = "source_stats",
    /// questions about names under a source that were answered on this node
    StatsSaved = "stats_saved",
    /// directories under a source that programs listed (opendir)
    SourceListings = "source_listings",
    /// directories under a source that were listed on this node
    ListingsSaved = "listings_saved",
    /// directories listed at the source: not cached yet
    ListingsUnknown = "listings_unknown",
    /// directories listed at the source: the cached directory could not be compared with it in time, or was out of date
    ListingsStale = "listings_stale",
    /// directories listed at the source: changed by a program on this node since
    ListingsTombstoned = "listings_tombstoned",
    /// directories listed at the source for another reason (freshness on_open, rights, a copy that is gone, a tier that
    /// is off, too many at a time)
    ListingsPassed = "listings_passed",
    /// directories listed at the source: excluded, or with an excluded name in them (--exclude)
    ListingsExcluded = "listings_excluded",
    /// directories that could not be reported to the agent: its queue was full, or no agent answered
    ListingsDropped = "listings_dropped",
    /// bytes of the files that were opened at the source
    FromSourceBytes = "from_source_bytes",
    /// nanoseconds that opens at the source took
    SourceOpenNs = "source_open_ns",
    /// opens that a copy answered after the source was opened: it came from another node, or the source had not changed
    CopyAfterOpen = "copy_after_open",
}
}

impl Counter {
    /// Reasons for which no copy answered an open for reading under a source. A file's first open is not among them.
    pub const MISSED: &[Self] = &[
        Self::NoRoom,
        Self::Stale,
        Self::Tombstoned,
        Self::Live,
        Self::SourceChanged,
        Self::CopyGone,
        Self::TierOff,
        Self::DroppedFull,
        Self::DroppedNoAgent,
    ];

    /// Opens under a source that no copy may answer.
    pub const PASSED: &[Self] = &[
        Self::Writing,
        Self::Flags,
        Self::DirectoryDescriptor,
        Self::StdioMode,
        Self::OddPath,
        Self::NotRegular,
        Self::Excluded,
        Self::OtherName,
        Self::OtherNamespace,
        Self::NoPage,
        Self::Locked,
    ];

    /// Reasons for which the source listed a directory that was cached, or that the agent could have cached. The first
    /// listing of a directory is among them only under `on_open`.
    pub const NOT_LISTED: &[Self] = &[
        Self::ListingsStale,
        Self::ListingsTombstoned,
        Self::ListingsPassed,
        Self::ListingsExcluded,
        Self::ListingsDropped,
    ];
}

named! {
/// Reason for which the agent did not copy a file or cache a directory. The names are keys of the agent's status, of
/// records and of metrics.
NotCached {
    /// on another file system than its source
    AnotherFileSystem = "another_file_system",
    /// from a process of another user
    AnotherUser = "another_user",
    /// changed while it was copied
    ChangedMeanwhile = "changed_meanwhile",
    /// excluded (--exclude)
    Excluded = "excluded",
    /// too little free space on the tier's disk, or memory
    FreeSpaceFloor = "free_space_floor",
    /// its times are ahead of this node's clock, and too many such files waited
    FromTheFuture = "from_the_future",
    /// is being copied
    InFlight = "in_flight",
    /// no memory for more names of copies
    IndexFull = "index_full",
    /// a directory with more names than a cached directory holds
    LargeDirectory = "large_directory",
    /// larger than every tier
    LargerThanEveryTier = "larger_than_every_tier",
    /// changed in place or locked by a program, and open or changed lately
    Live = "live",
    /// a message that could not be read
    Malformed = "malformed",
    /// memory grew short
    MemoryShort = "memory_short",
    /// mostly left unread
    MostlyUnread = "mostly_unread",
    /// a file system whose directories have no usable times
    NoDirectoryTimes = "no_directory_times",
    /// a message that did not arrive
    NoPacket = "no_packet",
    /// not a regular file
    NotRegular = "not_regular",
    /// a directory whose own positions do not lead through it
    OddDirectory = "odd_directory",
    /// open for writing
    OpenForWriting = "open_for_writing",
    /// the tier's size is used up
    QuotaUsedUp = "quota_used_up",
    /// modified within the last two seconds
    RecentlyModified = "recently_modified",
    /// the source gave an error
    SourceError = "source_error",
    /// the tier gave an error
    TierError = "tier_error",
    /// the tier is switched off
    TierOff = "tier_off",
    /// the tier's disk was full a moment ago
    TierWasFull = "tier_was_full",
    /// too many files waited to be copied
    TooManyDescriptors = "too_many_descriptors",
    /// too many directories waited to be listed
    TooManyDirectories = "too_many_directories",
    /// its run had ended
    UnknownRun = "unknown_run",
}
}

impl NotCached {
    /// Returns the text of the reason with this name; `None` for a name of another version.
    pub fn meaning_of(name: &str) -> Option<&'static str> {
        Self::ALL.iter().find(|reason| reason.name() == name).map(|reason| reason.meaning())
    }
}

/// The order of the counters is the order of the page.
pub(crate) const LAYOUT: &[&[u64]] = &[&[COUNT as u64, digest_of_names()]];

const fn digest_of_names() -> u64 {
    let mut digest = 0;
    let mut nth = 0;
    while nth < Counter::ALL.len() {
        digest = digest_of(digest, Counter::ALL[nth].name().as_bytes());
        nth += 1;
    }
    digest
}

/// Number of counters, without those kept for each tier.
pub const COUNT: usize = Counter::ALL.len();
