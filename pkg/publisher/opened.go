package publisher

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/refvol/refvol/pkg/receipts"
	"github.com/refvol/refvol/pkg/writer"
)

// maxUnopened is how many paths without a receipt are reported of an object.
const maxUnopened = 8

// OpenState says whether an object that a volume shows was opened.
type OpenState string

// The states of receipts.
const (
	// OpenYes: each of its files was opened since it shows what it shows.
	OpenYes OpenState = "yes"
	// OpenNo: at least one was not.
	OpenNo OpenState = "no"
	// OpenUnknown: opens of those that have no receipt may have been missed, or it has no file.
	OpenUnknown OpenState = "unknown"
	// OpenUnsupported: opens can't be watched here.
	OpenUnsupported OpenState = "unsupported"
)

// OpenStates returns all of them.
func OpenStates() []OpenState { return []OpenState{OpenYes, OpenNo, OpenUnknown, OpenUnsupported} }

// Opened describes the receipts of an object's files in a volume.
type Opened struct {
	State OpenState
	// Reason is why opens are not watched, "" where they are.
	Reason string
	// At is when the last of them got its receipt, where all have one. Since is when the last one came to show what it shows.
	At, Since time.Time
	// Unopened are the paths of files without a receipt, at most 8 of them, and Count is how many there are.
	Unopened []string
	Count    int
}

// shownFile is a file with one content. A link of it in another generation is the same one.
type shownFile struct {
	writer.Receipt
	// id is what names it to Opens.
	id string
	// missed says that opens may have been missed, as long as it has no receipt.
	missed bool
	// reported is how many reads of Opens have ended when all opens of before it was ignored are reported; 0: it is not ignored.
	reported uint64
}

// add takes in a file.
func (o *Opened) add(file *shownFile) {
	if file.Written.After(o.Since) {
		o.Since = file.Written
	}
	if !file.Opened.IsZero() {
		if o.State == "" {
			o.State = OpenYes
		}
		if file.Opened.After(o.At) {
			o.At = file.Opened
		}
		return
	}
	if !file.missed {
		o.State = OpenNo
	} else if o.State != OpenNo {
		o.State = OpenUnknown
	}
	if o.Count++; len(o.Unopened) < maxUnopened {
		o.Unopened = append(o.Unopened, short(file.Path))
	}
}

// conclude sets the state when all files were added. unwatched is why opens are not watched, unread why the files are not
// known; nil where they are.
func (o *Opened) conclude(unwatched, unread error) {
	switch {
	case unwatched != nil && !errors.Is(unwatched, receipts.ErrNoisy):
		o.State, o.Reason = OpenUnsupported, unwatched.Error()
	case o.State == "", unread != nil:
		o.State = OpenUnknown
	}
	if unwatched != nil {
		o.Reason = unwatched.Error()
	}
	if o.State != OpenYes {
		o.At = time.Time{}
	}
}

// receiptTime is how long receipts wait at most: until generations are pruned, and not while other volumes change.
const receiptTime = 2 * pruneTime

// inbox has what Opens reports of a volume until the volume's worker takes it. It is safe for concurrent use.
type inbox struct {
	wake func(at time.Time)

	mu   sync.Mutex
	news opensNews
	at   time.Time
}

// opensNews are when files were opened, by their IDs, whether others may have been, and why the watch was ended, nil if it
// was not.
type opensNews struct {
	opened map[string]time.Time
	lost   bool
	ended  error
}

// opened notes opens of files. It does not block.
func (b *inbox) opened(ids []string) {
	b.mu.Lock()
	now := time.Now()
	if b.news.opened == nil {
		b.news.opened = map[string]time.Time{}
	}
	for _, id := range ids {
		if _, ok := b.news.opened[id]; !ok {
			b.news.opened[id] = now
		}
	}
	at := b.due(now.Add(receiptTime))
	b.mu.Unlock()
	b.wake(at)
}

// lost notes that opens may have been missed, and why the watch was ended, nil if it was not. It does not block.
func (b *inbox) lost(ended error) {
	b.mu.Lock()
	b.news.lost = true
	if ended != nil {
		b.news.ended = ended
	}
	at := b.due(time.Now())
	b.mu.Unlock()
	b.wake(at)
}

// due notes when the worker is to come. The caller holds mu.
func (b *inbox) due(at time.Time) time.Time {
	b.at = earlier(b.at, at)
	return b.at
}

func (b *inbox) dueAt() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.at
}

// forget drops the opens of a file. err is why it is not known which these are.
func (b *inbox) forget(id string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.news.opened, id)
	if err != nil {
		b.news.lost = true
		b.due(time.Now())
	}
}

// take returns the news, and has none then.
func (b *inbox) take() (news opensNews) {
	b.mu.Lock()
	defer b.mu.Unlock()
	news, b.news, b.at = b.news, opensNews{}, time.Time{}
	return news
}

func sortedKeys(files map[string]*shownFile) []string { return slices.Sorted(maps.Keys(files)) }
