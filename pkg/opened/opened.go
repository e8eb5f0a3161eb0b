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
