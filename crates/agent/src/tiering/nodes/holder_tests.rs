//! Copies as other nodes are sent them keep the rules of every holder, on disks of all kinds.

use std::{
    fs::File,
    sync::{Arc, Mutex, Weak, mpsc::channel},
    thread,
};

use forebay_contract::Identity;
use forebay_peers::{Blob, BlobName, Found, Holder, Kind, conformance::TestedHolder, conformance::conforms};
use forebay_policy::peers::NodeGroups;
use forebay_store::disk::{
    Disk, FailingDisk, Fault, FaultKind, Folder, MemoryDisk, Name, RealDisk, Throttle, ThrottledDisk, When, write_all_at,
};
use rustix::io::Errno;
use twox_hash::XxHash3_128;

use super::{
    blob::{CopyBlob, CopyPart, DigestBlob, SharedVersion},
    group::{Inbox, NodeEvent},
};

/// Number of the copy.
const COPY: u64 = 7;

fn content() -> Vec<u8> {
    (0..600_000_u32).map(|index| (index * 7 + index / 251) as u8).collect()
}

/// Puts the copy onto a disk.
fn with_copy(disk: impl Disk + 'static) -> Arc<dyn Disk> {
    for folder in [Folder::Objects, Name::Object(COPY).folder()] {
        disk.make_dir(folder).unwrap();
    }
    let file = disk.create(Name::Object(COPY)).unwrap();
    write_all_at(&*file, &content(), 0).unwrap();
    file.close().unwrap();
    Arc::new(disk)
}

/// Checks the copy and its digest, as the event loop would hand them out from this disk.
fn check(disk: &dyn Disk, fails: bool) {
    let version = SharedVersion::of(&Identity {
        size: content().len() as u64,
        ..Identity::default()
    });
    let names = CopyPart::ALL.map(|part| version.name(b"/data/file", part));
    let digest = XxHash3_128::oneshot(&content());
    for (part, content) in [(CopyPart::Bytes, content()), (CopyPart::Digest, digest.to_le_bytes().into())] {
        let lent: Mutex<Vec<Weak<dyn Blob>>> = Mutex::default();
        let (events, asked) = channel();
        let groups = NodeGroups::of_at_most(2, 0);
        let inbox = Inbox::new("job", Arc::new(move |event| drop(events.send(event))), groups, 0);
        let find = |name: &BlobName| -> Option<Arc<dyn Blob>> {
            match SharedVersion::parse(name)?.1 {
                CopyPart::Bytes => Some(Arc::new(CopyBlob {
                    file: disk.open_read(Name::Object(COPY)).unwrap(),
                    bytes: content.len() as u64,
                    digest: Some(digest),
                    pieces: None,
                })),
                CopyPart::Digest => Some(Arc::new(DigestBlob(digest.to_le_bytes()))),
            }
        };
        let (lent, find) = (&lent, &find);
        thread::scope(|scope| {
            scope.spawn(move || {
                while let Ok(NodeEvent::Asked { request, reply, .. }) = asked.recv() {
                    if let Some(blob) = request.name.as_ref().and_then(find) {
                        lent.lock().unwrap().push(Arc::downgrade(&blob));
                        reply.send(Found::Blob(blob));
                    }
                }
            });
            let kept = conforms(&TestedHolder {
                holder: Arc::new(inbox) as Arc<dyn Holder>,
                kind: Kind::Files,
                object: names[part as usize].id(Kind::Files),
                content: &content,
                absent: version.name(b"/data/other", part).id(Kind::Files),
                outdated: None,
                names: &names,
                fails,
                lent: &|| lent.lock().unwrap().iter().filter(|blob| blob.strong_count() > 0).count(),
            });
            assert_eq!(kept, Ok(()), "{part:?}");
        });
    }
}

#[test]
fn copies_keep_the_rules_of_every_holder() {
    let dir = tempfile::tempdir().unwrap();
    let root = File::open(dir.path()).unwrap();
    check(&*with_copy(RealDisk::new(root.into()).unwrap()), false);
    let memory = with_copy(MemoryDisk::new(1 << 20, 100));
    let slow = Throttle {
        latency_us: 500,
        bytes_per_s: 200_000_000,
    };
    check(&ThrottledDisk::new(Arc::clone(&memory), slow), false);
    // The first operation opens the copy; the second read of it fails.
    for (kind, fails) in [
        (FaultKind::Error(Errno::IO), true),
        (FaultKind::Stuck, true),
        (FaultKind::Short, false),
    ] {
        let fault = Fault {
            nth: 2,
            for_ever: false,
            kind,
            when: When::Before,
        };
        check(&FailingDisk::new(Arc::clone(&memory), Some(fault)), fails);
    }
}
