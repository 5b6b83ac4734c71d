//! Ties `CONTRACT_VERSION` to the messages between processes: one that changes without a new version fails this test. The layouts of shared memory are tied
//! in `contract/src/layout.rs`.

use std::path::PathBuf;

use forebay_contract::{CONTRACT_VERSION, hash_bytes};
use forebay_policy::{residency::PolicyName, schedule::ScheduleName};
use serde_json::to_string;

use crate::{
    forks::protocol::{ForkProgress, ForkRequest, ForkResponse, ForkableJob},
    host::refusal::{Refusal, RefusalKind},
    samples::{
        Figures, RankFigures,
        protocol::{Alike, DiskSetting, LoaderRequest, LoaderResponse, OrderName, Settings, Variables},
    },
    tiering::{
        Totals,
        protocol::{Reply, Request, RunFreshness, SourceSetting, Status, TierStatus},
    },
};

/// Versions and the digests of their messages. A change of a message raises the version and adds a line; earlier lines stay as they are.
const DIGESTS: &[(u32, u64)] = &[(9, 0xD409_6A8E_1AFB_CBD2)];

/// One of each message, with all fields. A new field does not build here before it has a value.
fn samples() -> Vec<String> {
    let refusal = || Refusal {
        kind: RefusalKind::Taken,
        why: "why".into(),
    };
    let mut messages = requests_of_forks();
    messages.extend(responses_of_forks(refusal()));
    messages.extend(of_loaders(refusal()));
    messages.extend(of_tiering(refusal().why));
    messages
}

fn requests_of_forks() -> Vec<String> {
    let forks = vec![1, 2];
    let requests = [
        ForkRequest::Register {
            version: 0,
            job: "job".into(),
            rank: 1,
            ranks: 2,
            rejoins: true,
            shadow: 3,
        },
        ForkRequest::Measured { bytes: 1 },
        ForkRequest::Layout,
        ForkRequest::Publish {
            forks: forks.clone(),
            epoch: 1,
            step: 2,
        },
        ForkRequest::Abort {
            forks: forks.clone(),
            why: "why".into(),
        },
        ForkRequest::Fork {
            version: 0,
            job: "job".into(),
            at: Some(1),
            shadow: Some(2),
        },
        ForkRequest::Progress,
        ForkRequest::Fetch {
            version: 0,
            fork: 1,
            rank: 2,
            ranks: 3,
        },
        ForkRequest::Loaded,
        ForkRequest::Repeated { forks },
        ForkRequest::Failed { why: "why".into() },
        ForkRequest::Jobs,
    ];
    requests.iter().map(|request| to_string(request).unwrap()).collect()
}

fn responses_of_forks(refusal: Refusal) -> Vec<String> {
    let responses = [
        ForkResponse::Registered { secret: 1 },
        ForkResponse::Forking {
            fork: 1,
            name: "name".into(),
            ranks: 2,
            shadow: 3,
            secret: 4,
        },
        ForkResponse::Progress(ForkProgress {
            asked: true,
            ranks: 1,
            here: 2,
            taken: true,
            loaded: 3,
            is_over: true,
        }),
        ForkResponse::Waiting,
        ForkResponse::State {
            name: "name".into(),
            reader: 1,
            ranks: 2,
        },
        ForkResponse::Shadow,
        ForkResponse::Exists,
        ForkResponse::Jobs {
            jobs: vec![ForkableJob {
                job: "job".into(),
                ranks: 1,
                ranks_here: 2,
                step: Some(3),
                bytes: 4,
                clones: 5,
            }],
        },
        ForkResponse::Refused(refusal),
    ];
    responses.iter().map(|response| to_string(response).unwrap()).collect()
}

fn of_loaders(refusal: Refusal) -> Vec<String> {
    let alike = Alike {
        dataset: "digest".into(),
        samples: 1,
        extents: 2,
        seed: 3,
        batch: 4,
        world: 5,
        order: OrderName::Torch,
        sampler_drop_last: true,
        drop_last: false,
        policy: PolicyName::Forebay,
        schedule: ScheduleName::EarliestDeadline,
        window: 6,
        ahead: 7,
        background_fill: true,
        window_bytes: 8,
        memory_bytes: 9,
        disks: vec![DiskSetting {
            dir: PathBuf::from("/disk"),
            bytes: 10,
        }],
        reads_max: 11,
        hedge_budget: 0.5,
    };
    let settings = Settings {
        loader: "loader".into(),
        rank: 1,
        local_rank: 2,
        local_ranks: 3,
        alike,
    };
    let register = LoaderRequest::Register {
        version: 0,
        settings: Box::new(settings),
        variables: Variables([("NAME".to_owned(), "value".to_owned())].into()),
    };
    let requests = [register, LoaderRequest::Figures];
    let responses = [
        LoaderResponse::Registered {
            arena_bytes: 1,
            slots: 2,
            notes: vec!["note".into()],
        },
        LoaderResponse::RankGone { rank: 1 },
        LoaderResponse::Figures {
            figures: Figures::default(),
            of_rank: RankFigures::default(),
        },
        LoaderResponse::Refused(refusal),
    ];
    let requests = requests.iter().map(|request| to_string(request).unwrap());
    requests
        .chain(responses.iter().map(|response| to_string(response).unwrap()))
        .collect()
}

fn of_tiering(why: String) -> Vec<String> {
    let requests = [
        Request::Join {
            version: 0,
            sources: vec![SourceSetting {
                path: PathBuf::from("/source"),
                dev: 1,
            }],
            freshness: RunFreshness::Ttl(2),
            keep: true,
            prefetch: true,
            excludes: vec![1, 0],
        },
        Request::Status,
        Request::Totals,
        Request::Leave,
        Request::Stop,
    ];
    let status = Status {
        tiers: vec![TierStatus::default()],
        ..Status::default()
    };
    let replies = [
        Reply::Joined { run: 1, started_at: 2 },
        Reply::Status(status),
        Reply::Totals(Totals::default()),
        Reply::Stopping,
        Reply::Refused { why },
    ];
    let requests = requests.iter().map(|request| to_string(request).unwrap());
    requests.chain(replies.iter().map(|reply| to_string(reply).unwrap())).collect()
}

#[test]
fn a_message_that_changes_raises_the_version() {
    let digest = samples().iter().fold(0, |digest, message| hash_bytes(digest, message.as_bytes()));
    let last = DIGESTS.last().copied();
    assert_eq!(
        last,
        Some((CONTRACT_VERSION, digest)),
        "a message has changed: raise CONTRACT_VERSION and add this digest: {digest:#018x}"
    );
}

#[test]
fn another_field_is_another_digest() {
    let one = to_string(&Refusal::from("why")).unwrap();
    let other = one.replace("\"why\":", "\"reason\":");
    assert_ne!(hash_bytes(0, one.as_bytes()), hash_bytes(0, other.as_bytes()));
}
