//! A million heads and bodies that are almost right (F42): each is read or refused, and nothing exceeds its bound.

use forebay_policy::splitmix::{WEYL, mix};
use hyper::{
    HeaderMap, Method,
    header::{HeaderName, HeaderValue},
};

use crate::{
    limits::{MANY_BYTES_MAX, MANY_MAX, RANGE_BYTES_MAX, WITHIN_MAX},
    wire::{Asked, BlobId, Item, ItemHead, Kind, parse_content_range, parse_digest, parse_holders, parse_other_length},
};

const HEADS: u64 = 1_000_000;

const REQUEST: &[u8] = b"GET /1/samples/00112233445566778899aabbccddeeff HTTP/1.1\r\nhost: x\r\nrange: bytes=0-102399\r\n\
fb-within: 180\r\nfb-turn: 4711\r\nfb-members: 00000000deadbeef\r\nfb-whole: 1\r\n\r\n";
const ANSWER: &[u8] = b"GET / HTTP/1.1\r\ncontent-range: bytes 0-102399/102400\r\nfb-digest: 00112233445566778899aabbccddeeff\r\n\
fb-ask: 1,2,3,4\r\n\r\n";
/// Replacements of a few bytes.
const WORDS: [&[u8]; 10] = [
    b"18446744073709551615",
    b"18446744073709551616",
    b"-1",
    b"bytes=0-67108864",
    b"bytes=5-4",
    b"many",
    b"POST",
    b"\r\n",
    b"\0",
    b",,,,,,,,",
];

struct HeadDraw(u64);

impl HeadDraw {
    fn below(&mut self, below: usize) -> usize {
        self.0 = mix(self.0.wrapping_add(WEYL));
        (self.0 >> 16) as usize % below.max(1)
    }

    /// Alters one to three places.
    fn alter(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..=self.below(3) {
            let at = self.below(bytes.len());
            match self.below(5) {
                0 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte = self.0 as u8),
                1 => drop(bytes.drain(at..(at + 3).min(bytes.len()))),
                2 => bytes.extend_from_within(at..),
                3 => bytes.truncate(at),
                _ => {
                    let word = WORDS[self.below(WORDS.len())];
                    drop(bytes.splice(at..(at + word.len()).min(bytes.len()), word.iter().copied()));
                }
            }
        }
    }
}

/// Returns the head of a request that names its object.
fn named() -> Vec<u8> {
    let id = BlobId::of(Kind::Samples, b"/data/\xC3\xA9%", b"1\0 2");
    format!(
        "GET /1/samples/{id} HTTP/1.1\r\nrange: bytes=0-0\r\nfb-within: 180\r\nfb-turn: 4711\r\nfb-members: 00000000deadbeef\r\n\
         fb-name: /data/%C3%A9%25\r\nfb-version: 1%00%202\r\n\r\n"
    )
    .into_bytes()
}

/// Reads a head as a server does: method, path and headers.
fn parsed(head: &[u8]) -> Option<(Method, String, HeaderMap)> {
    let mut lines = [httparse::EMPTY_HEADER; 16];
    let mut request = httparse::Request::new(&mut lines);
    request.parse(head).ok().filter(httparse::Status::is_complete)?;
    let mut headers = HeaderMap::new();
    for line in &*request.headers {
        headers.append(
            HeaderName::from_bytes(line.name.as_bytes()).ok()?,
            HeaderValue::from_bytes(line.value).ok()?,
        );
    }
    Some((request.method?.parse().ok()?, request.path?.to_owned(), headers))
}

#[test]
fn f42_a_million_fuzzed_heads_are_read_or_refused() {
    let mut draw = HeadDraw(1);
    let (mut read, mut refused) = (0, 0);
    let (mut head, named) = (Vec::new(), named());
    for number in 0..HEADS {
        head.clear();
        match number % 4 {
            0 | 1 => {
                head.extend_from_slice(if number % 4 == 0 { REQUEST } else { &named });
                draw.alter(&mut head);
                let Some((method, path, headers)) = parsed(&head) else { continue };
                match Asked::parse(Kind::Samples, &method, &path, &headers) {
                    Ok(Asked::One(head)) => {
                        assert!(head.range.start < head.range.end && head.range.end - head.range.start <= RANGE_BYTES_MAX);
                        assert!(head.common.within <= WITHIN_MAX);
                        assert!(head.name.is_none_or(|name| name.id(Kind::Samples) == head.id));
                        read += 1;
                    }
                    Ok(Asked::Many(common)) => assert!(common.within <= WITHIN_MAX),
                    Err(status) => {
                        assert!(status.is_client_error());
                        refused += 1;
                    }
                }
            }
            2 => {
                head.extend_from_slice(ANSWER);
                draw.alter(&mut head);
                let Some((_, _, headers)) = parsed(&head) else { continue };
                assert!(parse_content_range(&headers).is_none_or(|(range, _)| range.start < range.end));
                assert!(parse_holders(&headers).len() <= 4);
                let _ = (parse_digest(&headers), parse_other_length(&headers));
            }
            _ => {
                head.extend((0..draw.below(6) * Item::BYTES).map(|_| if draw.below(3) == 0 { draw.0 as u8 } else { 0 }));
                draw.alter(&mut head);
                if let Some(items) = Item::parse_all(&head) {
                    assert!(items.len() <= MANY_MAX);
                    assert!(items.iter().map(|item| u64::from(item.length)).sum::<u64>() <= MANY_BYTES_MAX);
                    assert!(items.iter().all(|item| item.range().is_some_and(|range| !range.is_empty())));
                }
                if let Some((_, rest)) = ItemHead::parse(&head) {
                    assert_eq!(rest.len() + ItemHead::BYTES, head.len());
                }
            }
        }
    }
    assert!(read > HEADS / 50 && refused > HEADS / 50, "{read} were read and {refused} refused");
}

#[test]
fn what_is_not_altered_is_read() {
    let (method, path, headers) = parsed(REQUEST).unwrap();
    assert!(Asked::parse(Kind::Samples, &method, &path, &headers).is_ok());
    let (method, path, headers) = parsed(&named()).unwrap();
    let asked = Asked::parse(Kind::Samples, &method, &path, &headers);
    assert!(matches!(asked, Ok(Asked::One(head)) if head.name.is_some()));
    let (_, _, headers) = parsed(ANSWER).unwrap();
    assert_eq!(parse_content_range(&headers), Some((0..102_400, 102_400)));
    assert_eq!(parse_holders(&headers), [1, 2, 3, 4]);
    assert!(parse_digest(&headers).is_some());
}
