//! File formats of which programs mostly read all: weights and checkpoints.

use std::collections::HashMap;

use forebay_store::{CopySource, SourceFile};
use serde::Deserialize;

/// Longest header in bytes that is read to check it; of a longer one only the beginning is checked.
const HEADER_BYTES_MAX: u64 = 1 << 20;
/// First bytes of a zip archive, which `torch.save` writes.
const ZIP: &[u8] = b"PK\x03\x04";

/// Result of a look at the beginning of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileFormat {
    /// Format that is not known here.
    Unknown,
    /// The name promises a format, and the header is not of it.
    Damaged,
    /// A known format, whose data begin at this offset.
    Known(u64),
}

/// Returns true if the name of a file is that of a known format.
pub(crate) fn has_known_name(name: &[u8]) -> bool {
    extension(name)
        .is_some_and(|extension| [b"safetensors".as_slice(), b"gguf", b"distcp", b"pt", b"pth", b"bin", b"ckpt"].contains(&extension))
}

fn extension(name: &[u8]) -> Option<&[u8]> {
    let at = name.iter().rposition(|byte| *byte == b'.')?;
    name.get(at + 1..)
}

/// Reads the header of a file with the name of a known format. `size` is the file's size in bytes.
pub(crate) fn format_of(name: &[u8], source: &SourceFile, size: u64) -> FileFormat {
    let Some(first) = read(source, 0, 24) else {
        return FileFormat::Unknown;
    };
    match extension(name) {
        Some(b"safetensors") => safetensors(&first, source, size).map_or(FileFormat::Damaged, FileFormat::Known),
        Some(b"gguf") if first.starts_with(b"GGUF") && first.get(4).is_some_and(|version| (1..=3).contains(version)) => {
            FileFormat::Known(first.len() as u64)
        }
        Some(b"gguf") => FileFormat::Damaged,
        _ if first.starts_with(ZIP) => FileFormat::Known(0),
        // Names like `.bin` promise nothing.
        _ => FileFormat::Unknown,
    }
}

/// Place of a tensor in a safetensors file; the other fields are of no concern.
#[derive(Deserialize)]
struct TensorPlace {
    #[serde(default)]
    data_offsets: Option<[u64; 2]>,
}

/// Returns the offset of the data in a safetensors file; `None` if the header is invalid.
fn safetensors(first: &[u8], source: &SourceFile, size: u64) -> Option<u64> {
    let header_bytes = u64::from_le_bytes(first.get(..8)?.try_into().ok()?);
    let body = header_bytes.checked_add(8).filter(|body| *body <= size)?;
    if first.get(8) != Some(&b'{') {
        return None;
    }
    if header_bytes <= HEADER_BYTES_MAX {
        let header = read(source, 8, header_bytes as usize)?;
        let tensors: HashMap<String, TensorPlace> = serde_json::from_slice(&header).ok()?;
        let data = tensors.values().filter_map(|tensor| tensor.data_offsets).map(|[_, end]| end).max();
        if body.checked_add(data?)? != size {
            return None;
        }
    }
    Some(body)
}

fn read(source: &SourceFile, from: u64, len: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; len];
    let mut done = 0;
    while done < len {
        match source.read_at(bytes.get_mut(done..)?, from + done as u64).ok()? {
            0 => return None,
            read => done += read,
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn source(parts: &[&[u8]]) -> (SourceFile, u64) {
        let mut file = tempfile::tempfile().unwrap();
        let bytes = parts.concat();
        file.write_all(&bytes).unwrap();
        (SourceFile::new(file.into()), bytes.len() as u64)
    }

    fn format(name: &str, parts: &[&[u8]]) -> FileFormat {
        let (source, size) = source(parts);
        format_of(name.as_bytes(), &source, size)
    }

    #[test]
    fn names_of_weights_and_checkpoints_are_known() {
        for name in [
            "/m/model-00001-of-00002.safetensors",
            "/m/a.gguf",
            "/c/__0_0.distcp",
            "/c/a.pt",
            "/m/pytorch_model.bin",
        ] {
            assert!(has_known_name(name.as_bytes()), "{name}");
        }
        for name in ["/d/shard-0001.tar", "/d/safetensors", "/d.pt/x", "/d/photo.jpg"] {
            assert!(!has_known_name(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn a_safetensors_header_is_checked_against_the_size() {
        let header = br#"{"__metadata__":{"format":"pt"},"a":{"dtype":"U8","shape":[40],"data_offsets":[0,40]}}"#;
        let len = (header.len() as u64).to_le_bytes();
        let whole = format("a.safetensors", &[&len, header, &[7; 40]]);
        assert_eq!(whole, FileFormat::Known(8 + header.len() as u64));
        assert_eq!(format("a.safetensors", &[&len, header, &[7; 39]]), FileFormat::Damaged);
        assert_eq!(
            format("a.safetensors", &[&u64::MAX.to_le_bytes(), header, &[7; 40]]),
            FileFormat::Damaged
        );
        assert_eq!(format("a.safetensors", &[&len, &[b'x'; 200]]), FileFormat::Damaged);
    }

    #[test]
    fn other_formats_are_known_by_their_first_bytes() {
        assert_eq!(format("a.gguf", &[b"GGUF\x03\0\0\0", &[0; 64]]), FileFormat::Known(24));
        assert_eq!(format("a.gguf", &[b"GGML\x03\0\0\0", &[0; 64]]), FileFormat::Damaged);
        assert_eq!(format("a.pt", &[b"PK\x03\x04", &[0; 64]]), FileFormat::Known(0));
        assert_eq!(format("a.bin", &[&[0; 64]]), FileFormat::Unknown);
        assert_eq!(format("a.pt", &[b"PK"]), FileFormat::Unknown, "shorter than any header");
    }
}
