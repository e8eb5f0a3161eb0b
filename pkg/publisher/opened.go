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

// maxUnopened limits the paths without a receipt that are reported for an object.
const maxUnopened = 8

// OpenState says whether an object that a volume shows has been opened.
type OpenState string

// The states of receipts.
const (
	// OpenYes: each of its files was opened after it came to show its present content.
	OpenYes OpenState = "yes"
	// OpenNo: at least one file was not opened.
	OpenNo OpenState = "no"
	// OpenUnknown: opens of files without a receipt may have been missed, or the object has no file.
	OpenUnknown OpenState = "unknown"
	// OpenUnsupported: opens cannot be watched here.
	OpenUnsupported OpenState = "unsupported"
)

// OpenStates returns all states.
func OpenStates() []OpenState { return []OpenState{OpenYes, OpenNo, OpenUnknown, OpenUnsupported} }

// Opened describes the receipts of an object's files in a volume.
type Opened struct {
	State OpenState
	// Reason says why opens are not watched. It is "" if they are.
	Reason string
	// At is when the last file got its receipt, if all have one. Since is when the last file came to show its present content.
	At, Since time.Time
	// Unopened are the paths of files without a receipt, at most 8. Count is the number of all such files.
	Unopened []string
	Count    int
}

// shownFile is a file with one content. Its hard links in other generations are the same file.
type shownFile struct {
	writer.Receipt
	// id identifies the file for Opens.
	id string
	// missed means that opens may have been missed. It counts only while the file has no receipt.
	missed bool
	// reported is the value of Opens.Reads at which all opens from before the file was ignored are reported. 0 means that the file is not
	// ignored.
	reported uint64
}

// add counts a file of the object.
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

// conclude sets the state after all files were added. unwatched says why opens are not watched. unread says why the files are not known.
// Both are nil if there is no such reason.
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

// receiptTime is how long receipts wait at most before they are saved. They usually wait until generations are pruned, so that they don't
// delay the changes of other volumes.
const receiptTime = 2 * pruneTime

// inbox keeps what Opens reports about a volume until the volume's worker takes it. It is safe for concurrent use.
type inbox struct {
	wake func(at time.Time)

	mu   sync.Mutex
	news opensNews
	at   time.Time
}

// opensNews has the times at which files were opened, by file ID. lost means that other files may have been opened. ended says why the
// watch has ended, or is nil.
type opensNews struct {
	opened map[string]time.Time
	lost   bool
	ended  error
}

// opened notes that files were opened. It does not block.
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

// lost notes that opens may have been missed. ended says why the watch has ended, or is nil. It does not block.
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

// due notes when the worker must take the news. The caller holds mu.
func (b *inbox) due(at time.Time) time.Time {
	b.at = earlier(b.at, at)
	return b.at
}

func (b *inbox) dueAt() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.at
}

// forget drops the opens of a file. err says why its ID is not known, or is nil; opens may then have been missed.
func (b *inbox) forget(id string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.news.opened, id)
	if err != nil {
		b.news.lost = true
		b.due(time.Now())
	}
}

// take returns the news and empties the inbox.
func (b *inbox) take() (news opensNews) {
	b.mu.Lock()
	defer b.mu.Unlock()
	news, b.news, b.at = b.news, opensNews{}, time.Time{}
	return news
}

func sortedKeys(files map[string]*shownFile) []string { return slices.Sorted(maps.Keys(files)) }
