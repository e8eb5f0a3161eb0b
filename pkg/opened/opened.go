// Package opened knows which files of one volume have been opened since they came to show their present content, and so which objects.
//
// It owns the receipts of a volume's files: when they are read, written and forgotten, and whether opens of a file may have been missed. It
// owns the inbox for what the watch of opens reports, and the end and retry of that watch. It must not know about requests, about other
// volumes and their workers, or how files are rendered and written.
package opened

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/refvol/refvol/pkg/receipts"
	"github.com/refvol/refvol/pkg/writer"
)

// maxUnopened limits the paths without a receipt that are reported for an object, and pathLength the bytes of each path.
const (
	maxUnopened = 8
	pathLength  = 64
)

// State says whether an object that a volume shows has been opened.
type State string

// The states of receipts.
const (
	// Yes: each of its files was opened after it came to show its present content.
	Yes State = "yes"
	// No: at least one file was not opened.
	No State = "no"
	// Unknown: opens of files without a receipt may have been missed, or the object has no file.
	Unknown State = "unknown"
	// Unsupported: opens cannot be watched here.
	Unsupported State = "unsupported"
)

// States returns all states. The caller owns the slice.
func States() []State { return []State{Yes, No, Unknown, Unsupported} }

// Object describes the receipts of an object's files in a volume.
type Object struct {
	State State
	// Reason says why opens are not watched. It is "" if they are.
	Reason string
	// At is when the last file got its receipt, if all have one. Since is when the last file came to show its present content.
	At, Since time.Time
	// Unopened are the paths of files without a receipt, in order, at most 8, and only the beginnings of long ones. Count is the number of
	// all such files.
	Unopened []string
	Count    int
}

// shownFile is a file with one content. Its hard links in other generations are the same file.
type shownFile struct {
	writer.Receipt
	// id identifies the file for the Watcher.
	id string
	// missed means that opens may have been missed. It counts only while the file has no receipt.
	missed bool
	// ignored is the end of the opens from before the file was ignored. The zero value means that the file is not ignored.
	ignored receipts.Position
}

// add counts a file of the object.
func (o *Object) add(file *shownFile) {
	if file.Written.After(o.Since) {
		o.Since = file.Written
	}
	if !file.Opened.IsZero() {
		if o.State == "" {
			o.State = Yes
		}
		if file.Opened.After(o.At) {
			o.At = file.Opened
		}
		return
	}
	if !file.missed {
		o.State = No
	} else if o.State != No {
		o.State = Unknown
	}
	if o.Count++; len(o.Unopened) < maxUnopened {
		o.Unopened = append(o.Unopened, short(file.Path))
	}
}

// conclude sets the state after all files were added. unwatched says why opens are not watched. unread says why the files are not known.
// Both are nil if there is no such reason.
func (o *Object) conclude(unwatched, unread error) {
	switch {
	case unwatched != nil && !errors.Is(unwatched, receipts.ErrNoisy):
		o.State, o.Reason = Unsupported, unwatched.Error()
	case o.State == "", unread != nil:
		o.State = Unknown
	}
	if unwatched != nil {
		o.Reason = unwatched.Error()
	}
	if o.State != Yes {
		o.At = time.Time{}
	}
}

// short returns a path, or the beginning of a long one.
func short(path string) string {
	if len(path) <= pathLength {
		return path
	}
	return strings.ToValidUTF8(path[:pathLength], "") + fmt.Sprintf("... (%d bytes)", len(path))
}

// inbox keeps what the Watcher reports about a volume until Save takes it. It is safe for concurrent use.
type inbox struct {
	// delay is how long opens wait at most until they are taken. Both fields are constant.
	delay time.Duration
	wake  func(at time.Time)

	// mu guards the fields below. at is when the news must be taken; zero without any.
	mu   sync.Mutex
	news news
	at   time.Time
}

// news has the times at which files were opened, by file ID. lost means that other files may have been opened. ended says why the
// watch has ended, or is nil.
type news struct {
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
	at := b.due(now.Add(b.delay))
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

// due notes when the news must be taken. The caller holds mu.
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
func (b *inbox) take() (taken news) {
	b.mu.Lock()
	defer b.mu.Unlock()
	taken, b.news, b.at = b.news, news{}, time.Time{}
	return taken
}
