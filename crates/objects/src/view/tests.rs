//! Views whose directory others could write to, and attempts that ended half-way.

use std::{fs, fs::Permissions, os::unix::fs::PermissionsExt, path::Path};

use super::*;
use crate::store::Object;

const ADDRESS: &str = "s3://b/p";

fn object(key: &str) -> Object {
    Object {
        key: Ok(key.into()),
        etag: "e".into(),
        size: 1,
        modified_ms: 1_000_000,
    }
}

fn record(path: &str, etag: &str) -> FileRecord {
    FileRecord {
        path: path.into(),
        etag: etag.into(),
        size: 1,
        modified_ms: 1_000_000,
        checksum: String::new(),
    }
}

fn put_file(path: &Path, modified_ms: u64) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, "x").unwrap();
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_millis(modified_ms);
    fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
}

fn manifest(records: &[FileRecord]) -> ViewManifest {
    ViewManifest {
        url: ADDRESS.into(),
        records: records.iter().map(|record| (record.path.clone(), record.clone())).collect(),
        directories: BTreeSet::new(),
    }
}

#[test]
fn a_view_in_which_others_may_write_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("v");
    let view = View::open(&path).unwrap();
    manifest(&[]).write(&view.state).unwrap();
    assert!(!view.is_whole_of(ADDRESS).unwrap(), "it is not there");
    fs::create_dir(&path).unwrap();
    for (mode, is_well) in [(0o700, true), (0o755, true), (0o775, false), (0o757, false), (0o1777, false)] {
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        match view.is_whole_of(ADDRESS) {
            Ok(is_whole) => assert!(is_whole && is_well, "{mode:o}"),
            Err(error) => assert!(
                !is_well && error.to_string().contains("belongs to somebody else"),
                "{mode:o}: {error}"
            ),
        }
    }
    fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    // Only root can create files of another user.
    if std::os::unix::fs::chown(&path, Some(65534), None).is_ok() {
        assert!(view.is_whole_of(ADDRESS).is_err());
    }
}

#[test]
fn what_an_attempt_published_goes_when_its_object_is_gone() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("v");
    let view = View::open(&path).unwrap();
    let earlier = manifest(&[record("stays", "e"), record("updated", "old"), record("altered", "e")]);
    put_file(&path.join("stays"), 1_000_000);
    put_file(&path.join("d/published"), 1_000_000);
    put_file(&path.join("updated"), 1_000_000);
    put_file(&path.join("altered"), 2_000_000);
    put_file(&path.join("theirs"), 2_000_000);
    let noted = ["d/published", "updated", "altered", "theirs", "only_staged"].map(|path| record(path, "e"));
    Journal::begin(&view.state, ADDRESS, &noted).unwrap();
    let layout = PathLayout::of(vec![object("p/stays")], "p/", 0);
    let staged = view.state.make_dir(STAGED).unwrap();
    let mut tree = DirectoryTree::new(view.own_dir().unwrap().unwrap());
    let (journal, _) = Journal::read(&view.state).unwrap();
    let plan = FillPlan::make(
        &layout,
        &Earlier {
            manifest: Some(&earlier),
            journal: &journal,
            is_doubtful: false,
            verify: false,
        },
        &mut tree,
        &staged,
    )
    .unwrap();
    assert!(plan.tasks.is_empty() && !plan.is_nothing(), "{plan:?}");
    let filling = ViewPass {
        view: &view,
        layout: &layout,
        manifest: Some(&earlier),
        address: ADDRESS,
        is_new: false,
    };
    let gone = filling.publish(&plan, &FetchedObjects::default(), &staged, &mut tree).unwrap();
    assert_eq!(gone, (2, 1));
    let mut names: Vec<_> = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["altered", "stays", "theirs"]);
    assert_eq!(ViewManifest::read(&view.state).unwrap().unwrap().records.len(), 1);
}
