package opened

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/refvol/refvol/pkg/receipts"
	"github.com/refvol/refvol/pkg/writer"
)

// TestObject: what is told of an object, by its files and by the watch.
func TestObject(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	file := func(path string, opened, missed bool) *shownFile {
		f := &shownFile{Receipt: writer.Receipt{Path: path, Written: at}, missed: missed}
		if opened {
			f.Opened = at.Add(time.Hour)
		}
		return f
	}
	noisy, missing := receipts.ErrNoisy.Error(), []string{"missed"}
	yes, no, missed := file("yes", true, true), file("no", false, false), file("missed", false, true)
	for name, test := range map[string]struct {
		files             []*shownFile
		unwatched, unread error
		want              Object
	}{
		"no file":                  {nil, nil, nil, Object{State: Unknown}},
		"opened":                   {[]*shownFile{yes, yes}, nil, nil, Object{State: Yes, At: at.Add(time.Hour), Since: at}},
		"opened in part":           {[]*shownFile{yes, no}, nil, nil, Object{State: No, Since: at, Unopened: []string{"no"}, Count: 1}},
		"not opened, and missed":   {[]*shownFile{no, missed}, nil, nil, Object{State: No, Since: at, Unopened: []string{"no", "missed"}, Count: 2}},
		"missed, and not opened":   {[]*shownFile{missed, no}, nil, nil, Object{State: No, Since: at, Unopened: []string{"missed", "no"}, Count: 2}},
		"opened, and missed":       {[]*shownFile{yes, missed}, nil, nil, Object{State: Unknown, Since: at, Unopened: []string{"missed"}, Count: 1}},
		"files that can't be read": {[]*shownFile{no}, nil, errFault, Object{State: Unknown, Since: at, Unopened: []string{"no"}, Count: 1}},
		"not watched":              {[]*shownFile{yes}, errFault, nil, Object{State: Unsupported, Reason: "a fault", Since: at}},
		"neither watched nor read": {nil, errFault, errFault, Object{State: Unsupported, Reason: "a fault"}},
		"too noisy, opened before": {[]*shownFile{yes}, receipts.ErrNoisy, nil, Object{State: Yes, Reason: noisy, At: at.Add(time.Hour), Since: at}},
		"too noisy, and missed":    {[]*shownFile{missed}, receipts.ErrNoisy, nil, Object{State: Unknown, Reason: noisy, Since: at, Unopened: missing, Count: 1}},
	} {
		var o Object
		for _, f := range test.files {
			o.add(f)
		}
		if o.conclude(test.unwatched, test.unread); fmt.Sprint(o) != fmt.Sprint(test.want) {
			t.Errorf("%s: %+v, want %+v", name, o, test.want)
		}
		if !slices.Contains(States(), o.State) {
			t.Errorf("%s: %q is no state", name, o.State)
		}
	}
}

// TestTheLastTimeCounts: an object is shown since its last file was written, and opened when its last file was.
func TestTheLastTimeCounts(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, order := range [][]time.Duration{{0, time.Hour}, {time.Hour, 0}} {
		var o Object
		for _, after := range order {
			o.add(&shownFile{Receipt: writer.Receipt{Written: at.Add(after), Opened: at.Add(2 * after).Add(time.Minute)}})
		}
		if o.conclude(nil, nil); !o.Since.Equal(at.Add(time.Hour)) || !o.At.Equal(at.Add(2*time.Hour+time.Minute)) {
			t.Errorf("%v: %+v", order, o)
		}
	}
}

// TestManyUnopenedFiles: all are counted, and the first ones are named, by the beginnings of long paths.
func TestManyUnopenedFiles(t *testing.T) {
	var o Object
	fits := strings.Repeat("f", pathLength)
	for _, path := range []string{fits, fits + "g", strings.Repeat("ü", pathLength), "3", "4", "5", "6", "7", "8", "9"} {
		o.add(&shownFile{Receipt: writer.Receipt{Path: path}})
	}
	want := []string{fits, fits + "... (65 bytes)", strings.Repeat("ü", pathLength/2) + "... (128 bytes)", "3", "4", "5", "6", "7"}
	if o.conclude(nil, nil); o.Count != 10 || !slices.Equal(o.Unopened, want) {
		t.Errorf("%d are not opened, %q, want %q", o.Count, o.Unopened, want)
	}
}
