//! Bulk copies: one thread asks for the copy of many bytes, and an engine carries it out while the block's threads do something else.

use super::{Block, How, LINE_BYTES};
use core::cell::Cell;
use oxccl_shared::abi::SlotHeader;

/// The use of one tile, or the turn of a piece: which one, and whether it is an odd use of it. Uses go round; whoever takes one after the
/// other needs no more to tell a use from the one before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tile {
    /// Which.
    pub index: u32,
    /// Whether its round is odd; the first one is even.
    pub odd: bool,
}

impl Tile {
    /// The next use, where a block has `count` tiles.
    #[inline(always)]
    pub fn next(self, count: u32) -> Tile {
        match self.index + 1 {
            index if index == count => Tile { index: 0, odd: !self.odd },
            index => Tile { index, odd: self.odd },
        }
    }
}

/// What threads of a block wait for among each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// What the tile held before is not needed any more.
    Empty,
    /// The one operand of a piece that is only moved has been loaded.
    Loaded,
    /// All operands of a piece have been loaded that are to be combined.
    Gathered,
    /// All combiners of the turn have left their parts of the outcome in the first of these tiles.
    Combined,
}

/// Stores that may still read their tiles while the next one is asked for. Each keeps a tile from the loads.
pub const STORES_READING: usize = 2;

/// Stores that may be incomplete when the ones before them are published.
pub const STORES_RECENT: u32 = 3;

/// What the threads of a block know of its tiles, each for itself and all alike: they walk the same slices. Of the stores only the
/// storing thread knows.
pub struct Pipe {
    /// The next use of a tile.
    pub next: Cell<Tile>,
    /// The next turn of a piece that is only moved. Turns go round as tiles do, of which a piece has one at least.
    pub moved: Cell<Tile>,
    /// The next turn of a piece whose operands are combined. Combiners wait for nothing else, so these turns are counted apart.
    pub combined: Cell<Tile>,
    /// Whether some, but not all operands of that piece were asked for.
    pub is_torn: Cell<bool>,
    /// Tiles that stores may be reading, a byte for each, the latest one lowest; [`NO_TILE`] where there is none.
    pub reading: Cell<u64>,
    /// A slot whose last store was asked for and not yet waited for: its header, and the connections to publish it on, a bit for each.
    pub stored: Cell<(SlotHeader, u32)>,
    /// Stores after that.
    pub recent: Cell<u32>,
}

/// No tile, in [`Pipe::reading`].
pub const NO_TILE: u64 = 0xff;

impl Default for Pipe {
    #[inline(always)]
    fn default() -> Pipe {
        Pipe {
            next: Cell::new(Tile::default()),
            moved: Cell::new(Tile::default()),
            combined: Cell::new(Tile::default()),
            is_torn: Cell::new(false),
            reading: Cell::new(u64::MAX),
            stored: Cell::new((SlotHeader { tag: 0, len_bytes: 0 }, 0)),
            recent: Cell::new(0),
        }
    }
}

/// A block that moves data through tiles of its own memory by bulk copies.
///
/// Threads have roles. Each goes through the slices of an operation by itself, and waits for the others at a tile's [`Stage`] only:
///
/// ```text
/// loader     waits for a peer's slot     tile Empty     asks for loads   ...  tiles ahead of the others
/// combiners                              piece Gathered add its tiles up, where there is something to add
/// storer     waits for credits           piece Loaded or Combined   asks for stores, publishes slots, gives back slots and tiles
/// ```
/// A block of few threads has one with several roles; the order of a tile's stages is then the order in which it does them.
///
/// Copies are another *proxy* than loads and stores of threads, with its own way to memory: see docs/memory-model.md.
pub trait BulkCopy: Block {
    /// Bytes of a tile: a multiple of 128.
    fn tile_bytes(&self) -> usize;

    /// Bytes of the first piece of what begins at this address: behind it, pieces begin where lines do. A tile begins with a line, and where its
    /// place in memory does not, the engine moves two parts of lines for each (docs/measurements/2026-11-29-any-place.md).
    #[inline(always)]
    fn first_piece_bytes(&self, address: usize) -> usize {
        const ALIGN: usize = 16;
        let tile = self.tile_bytes();
        tile - (address % LINE_BYTES / ALIGN * ALIGN).min(tile - ALIGN)
    }

    /// Tiles of the block; more than any slice has operands.
    fn tiles(&self) -> u32;

    /// This thread's view of the tiles.
    fn pipe(&self) -> &Pipe;

    /// Whether this thread asks for loads. It is the first worker.
    #[inline(always)]
    fn loads(&self) -> bool {
        self.leads()
    }

    /// Whether this thread combines operands.
    fn combines(&self) -> bool;

    /// Whether it does those of this turn: combiners may be divided into groups that take turns, so that one piece is combined while
    /// another is waited for.
    fn combines_turn(&self, turn: Tile) -> bool;

    /// Whether this thread asks for stores. It tells the peers.
    #[inline(always)]
    fn stores(&self) -> bool {
        self.posts()
    }

    /// Whether the block's operator changes a single operand treated so.
    fn changes(&self, how: How) -> bool;

    /// Whether a use of a tile has come so far ([`Stage::Empty`]), or the turn of a piece. With `patience` it may take a while to say
    /// no.
    fn has_come(&self, stage: Stage, turn: Tile, patience: bool) -> bool;

    /// Whether a thread of the block has stopped.
    fn has_stopped(&self) -> bool;

    /// This thread has stopped: those that wait for it shall too.
    fn stop(&self);

    /// Loader and storer: what peers had written before this thread acquired their word is what later loads read, and what they had
    /// read is not what later stores overwrite.
    fn see_peers(&self);

    /// Loader: asks for the load of `len_bytes` into an empty tile, for the piece whose stage and turn this is. A `whole` source can be
    /// read to the next multiple of 16.
    ///
    /// # Safety
    /// 1. `src` is 16-byte aligned, and readable for `len_bytes` until the piece is loaded; `len_bytes` fit a tile.
    /// 2. The tile is empty.
    unsafe fn load(&self, tile: Tile, piece: (Stage, Tile), src: *const u8, len_bytes: usize, whole: bool);

    /// Loader: all of a piece's loads have been asked for.
    fn asked(&self, piece: (Stage, Tile));

    /// Combiners: applies the operator to the elements of a tile, as `how` says.
    ///
    /// # Safety
    /// 1. The tile is loaded, with a whole number of elements.
    unsafe fn map_tile(&self, tile: Tile, len_bytes: usize, how: How);

    /// Combiners: `tile = op(tile, operand)`; `how.pre` applies to the operand. A combiner works on the same elements of all tiles.
    ///
    /// # Safety
    /// 1. Both tiles are loaded, with a whole number of elements.
    unsafe fn combine_tile(&self, tile: Tile, operand: Tile, len_bytes: usize, how: How);

    /// Combiners: this thread is done with the tiles of this turn.
    fn combined(&self, turn: Tile);

    /// Storer: asks for the store of a tile. A `whole` destination can be written to the next multiple of 16.
    ///
    /// # Safety
    /// 1. `dst` is 16-byte aligned, and writable for `len_bytes` until the store is waited for.
    /// 2. The tile is loaded, and combined if its operands are, and not freed before the store has read it.
    unsafe fn store(&self, tile: Tile, dst: *mut u8, len_bytes: usize, whole: bool);

    /// Storer: what was asked for since the last call is a group.
    fn commit(&self);

    /// Storer: waits until all groups but the last [`STORES_READING`] have read their tiles.
    fn wait_read(&self);

    /// Storer: waits until all groups but the last [`STORES_RECENT`] are complete.
    fn wait_recent(&self);

    /// Storer: waits until all groups are complete.
    fn wait_stored(&self);

    /// Storer: what is complete is complete for whom this thread tells.
    fn show_peers(&self);

    /// Storer: the tile is empty.
    fn free(&self, index: u32);
}
