//! Measures the cost of publishing and recovering copies: `cargo run --release -p forebay-store --example
//! catalogue_cost -- DIR COPIES`.
#![expect(clippy::print_stdout, clippy::cast_precision_loss, reason = "it prints figures")]

use std::path::PathBuf;
use std::time::Instant;

use forebay_policy::Space;
use forebay_store::testing::MemorySource;
use forebay_store::{CatalogueEntry, CatalogueItem, Secret, SourceMount, StatFrom, Tier, clean};

type ExampleError = Box<dyn std::error::Error>;

const COPY_BYTES: usize = 100;
const COPIES_A_DIR: u64 = 1000;

fn resident_mib() -> Result<u64, ExampleError> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.split_whitespace().nth(1).ok_or("no number")?.parse::<u64>()? / 1024)
}

fn fill(tier: &Tier, copies: u64) -> Result<(f64, f64), ExampleError> {
    let source = MemorySource::new(1, &[5; COPY_BYTES]);
    let mut buffer = vec![0; COPY_BYTES];
    let (mut making, mut publishing) = (0.0, 0.0);
    for number in 0..copies {
        let begun = Instant::now();
        let id = tier.next_id();
        let identity = source.identity();
        let mut writer = tier.begin(id, &identity)?;
        writer.advance(&source, u64::MAX, &mut buffer)?;
        let finished = writer.finish(&source, StatFrom::Kernel)?;
        making += begun.elapsed().as_secs_f64();
        let dir = format!("/pfs/imagenet/train/n{:08}", number / COPIES_A_DIR);
        let name = format!("n{:08}_{number}.JPEG", number / COPIES_A_DIR);
        let begun = Instant::now();
        tier.publish(&CatalogueEntry {
            id,
            dir: dir.as_bytes(),
            name: name.as_bytes(),
            mount: SourceMount {
                source: b"10.0.0.1:/pfs",
                fs_type: b"nfs4",
            },
            identity,
            attributes: forebay_contract::Attributes {
                mode: 0o100_644,
                uid: 1000,
                gid: 1000,
                nlink: 1,
                blksize: 4096,
                blocks: 8,
            },
            object: finished.object,
            checksum: finished.checksum,
            created_unix_s: 1_800_000_000,
        })?;
        publishing += begun.elapsed().as_secs_f64();
    }
    Ok((making, publishing))
}

fn main() -> Result<(), ExampleError> {
    let mut arguments = std::env::args().skip(1);
    let dir = PathBuf::from(arguments.next().ok_or("usage: catalogue_cost DIR COPIES")?);
    let copies: u64 = arguments.next().ok_or("usage: catalogue_cost DIR COPIES")?.parse()?;
    let uid = rustix::process::geteuid().as_raw();
    let secret = Secret::from_bytes([1; 32]);
    let quota = Space {
        bytes: u64::MAX,
        inodes: u64::MAX,
    };

    let tier = Tier::open(&dir, quota, &secret, uid)?;
    let (making, publishing) = fill(&tier, copies)?;
    let us = |seconds: f64| seconds * 1e6 / copies as f64;
    println!(
        "copy of {COPY_BYTES} bytes: {:.1} us, publish: {:.2} us",
        us(making),
        us(publishing)
    );
    println!("catalogue: {} bytes", std::fs::metadata(tier.root_path().join("catalogue"))?.len());
    drop(tier);

    let before = resident_mib()?;
    let begun = Instant::now();
    let tier = Tier::open(&dir, quota, &secret, uid)?;
    println!("open: {:.1} ms", begun.elapsed().as_secs_f64() * 1e3);
    let begun = Instant::now();
    let (mut bytes, mut most) = (0, before);
    let report = tier.recover(|recovered| {
        if let CatalogueItem::Copy(copy) = recovered {
            bytes += copy.identity.size;
            if copy.id % 100_000 == 0 {
                most = most.max(resident_mib().unwrap_or(0));
            }
        }
    })?;
    println!(
        "recover: {:.2} s, {} copies, {bytes} bytes; resident before {before} MiB, most {most} MiB",
        begun.elapsed().as_secs_f64(),
        report.copies
    );

    let begun = Instant::now();
    tier.compact()?;
    println!("compact: {:.2} s", begun.elapsed().as_secs_f64());
    drop(tier);
    let begun = Instant::now();
    let report = clean(&dir, uid)?;
    println!("clean: {:.2} s, {} copies", begun.elapsed().as_secs_f64(), report.removed);
    Ok(())
}
