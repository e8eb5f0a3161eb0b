package opened

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/refvol/refvol/internal/doclines"
	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/receipts"
	"github.com/refvol/refvol/pkg/volume"
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

func TestDocumentedLimits(t *testing.T) {
	longest := map[time.Duration]string{time.Hour: "an hour"}[rewatchMax]
	doclines.Says(t, "../../docs/limits.md", fmt.Sprintf("**More than %d files.**", maxFiles),
		fmt.Sprintf("at the earliest after %v s, and after longer each time, up to %s", rewatchMin.Seconds(), longest),
		fmt.Sprintf("tries again by itself: after %v s, and after longer each time, up to %s", rewatchMin.Seconds(), longest))
}

func TestReceipts(t *testing.T) {
	for name, test := range receiptsTests {
		t.Run(name, func(t *testing.T) { inBubble(t, writer.Options{}, test) })
	}
}

var receiptsTests = map[string]func(v *testVolume){
	// A file with new content is not opened, and one that did not change keeps its receipt.
	"an object is opened when each of its files is": func(v *testVolume) {
		v.write("a/x", "1", "a/y", "1", "b/x", "1", "versions", "1")
		v.wantIgnored("versions")
		v.want("a", No, "a/x", "a/y")
		v.want("none", Unknown)
		v.watcher.opened([]string{v.id("a/x")})
		v.wantDue(delay)
		v.watcher.opened([]string{v.id("a/y"), "of another volume"}) // the first one is not delayed by a later one
		v.want("a", No, "a/x", "a/y")
		at := time.Now()
		v.wait()
		v.want("a", Yes)
		v.want("b", No, "b/x")
		if o := v.States([]volume.Ref{ref("a")})[ref("a")]; !o.At.Equal(at) {
			v.Errorf("opened at %s, want %s", o.At, at)
		}
		v.wantNothingDue()
		v.wantIgnored("versions", "a/x", "a/y")
		if v.watcher.owner != "pod" || len(v.wakes) != 2 || !v.wakes[1].Equal(at.Add(delay)) {
			v.Errorf("the owner is %q, and it was woken for %v", v.watcher.owner, v.wakes)
		}
		v.write("a/x", "1", "a/y", "2", "b/x", "1", "versions", "2")
		v.want("a", No, "a/y")
		v.open("a/y")
		v.want("a", Yes)
	},
	"close ends the watch, and forgets the files and what is due": func(v *testVolume) {
		v.write("a/x", "1")
		v.watcher.opened([]string{v.id("a/x")})
		v.Find(time.Now())
		v.Close()
		v.Close()
		v.wantNothingDue()
		v.want("a", Unknown)
		if v.watcher.watches != 0 {
			v.Errorf("%d watches are left", v.watcher.watches)
		}
		v.Removing(-1) // there is nothing to ignore without a watch
		v.write("a/x", "2")
		v.want("a", Unknown, "a/x") // a process may have opened it before the watch
	},
	"without a watcher there are no receipts": func(v *testVolume) {
		v.Receipts = New(Options{Wake: func(time.Time) { v.Error("it was woken") }})
		if o := v.Bind(v.opts, ""); o.Rewritten != nil || o.Removing != nil {
			v.Error("it wants to hear of files")
		}
		v.Find(time.Now())
		v.write("a/x", "1")
		v.Lost()
		v.wantNothingDue()
		v.Save(v.Context(), v.root)
		if all := v.States([]volume.Ref{ref("a")}); all != nil {
			v.Errorf("got %v", all)
		}
		v.Close()
	},
	"a watch that is refused is retried, with delays that grow": func(v *testVolume) {
		v.watcher.refusal = errFault
		v.write("a/x", "1")
		for _, wait := range []time.Duration{rewatchMin, 2 * rewatchMin, 4 * rewatchMin} {
			v.want("a", Unsupported, "a/x")
			v.wantDue(wait)
			<-time.After(wait)
			v.Save(v.Context(), v.root)
		}
		for range 20 {
			<-time.After(time.Until(v.DueAt()))
			v.Save(v.Context(), v.root)
		}
		v.wantDue(rewatchMax)
		v.wantLogged(1)
		v.watcher.refusal = nil
		<-time.After(rewatchMax)
		v.Save(v.Context(), v.root)
		v.wantNothingDue()
		v.want("a", Unknown, "a/x")
		v.open("a/x")
		v.want("a", Yes)
	},
	// The first write some time later starts another one.
	"noise ends the watch": func(v *testVolume) {
		v.write("a/x", "1", "b/x", "1")
		v.open("a/x")
		v.watcher.lost(receipts.ErrNoisy)
		v.wantDue(0)
		v.Save(v.Context(), v.root)
		v.wantNothingDue()
		v.want("a", Yes)
		v.want("b", Unknown, "b/x")
		if o := v.States([]volume.Ref{ref("b")})[ref("b")]; o.Reason != receipts.ErrNoisy.Error() || v.watcher.watches != 0 || v.watcher.unmarks != 1 {
			v.Errorf("the reason is %q, with %d watches after %d ends", o.Reason, v.watcher.watches, v.watcher.unmarks)
		}
		v.write("a/x", "1", "b/x", "2")
		if v.watcher.watches != 0 {
			v.Error("a watch was started at once")
		}
		<-time.After(rewatchMin)
		v.write("a/x", "1", "b/x", "3")
		v.want("b", Unknown, "b/x") // a fast process may have opened it before the watch
		v.write("a/x", "1", "b/x", "4")
		v.want("b", No, "b/x")
		v.open("b/x")
		v.want("b", Yes)
		v.wantLogged(1)
	},
	"old failures make no retry wait for an hour": func(v *testVolume) {
		v.write("a/x", "0")
		for i := range 12 {
			v.watcher.lost(receipts.ErrNoisy)
			v.Save(v.Context(), v.root)
			<-time.After(rewatchMin)
			v.write("a/x", fmt.Sprint(i+1))
			if v.watcher.watches != 1 {
				v.Fatalf("after failure %d there are %d watches", i+1, v.watcher.watches)
			}
			<-time.After(3 * rewatchMax)
		}
	},
	"a watch that ends for another reason is started again by itself": func(v *testVolume) {
		v.write("a/x", "1")
		v.watcher.watches = 0
		v.watcher.lost(errFault)
		v.Save(v.Context(), v.root)
		v.want("a", Unsupported, "a/x")
		v.wantDue(rewatchMin)
		<-time.After(rewatchMin)
		v.Save(v.Context(), v.root)
		v.want("a", Unknown, "a/x")
		if v.watcher.watches != 1 || v.watcher.unmarks != 0 {
			v.Errorf("%d watches, %d ends", v.watcher.watches, v.watcher.unmarks)
		}
	},
	"too many files are not watched, and then neither are those that were": func(v *testVolume) {
		pairs := make([]string, 0, 2*maxFiles+2)
		for i := range maxFiles {
			pairs = append(pairs, fmt.Sprintf("a/%03d", i), "1")
		}
		more := append(pairs, "b/x", "1")
		v.write(more...)
		v.want("a", Unsupported)
		if v.watcher.watches != 0 {
			v.Error("they are watched")
		}
		v.write(pairs...)
		if o := v.States([]volume.Ref{ref("a")})[ref("a")]; o.State != Unknown || o.Count != maxFiles || v.watcher.watches != 1 {
			v.Errorf("%+v, %d watches", o, v.watcher.watches)
		}
		v.write(more...)
		v.want("a", Unsupported)
		if o := v.States([]volume.Ref{ref("a")})[ref("a")]; o.Reason != errTooManyFiles.Error() || v.watcher.watches != 0 || v.watcher.unmarks != 1 {
			v.Errorf("%+v, %d watches, %d ends", o, v.watcher.watches, v.watcher.unmarks)
		}
	},
	"files that can't be read are unknown, and are read again": func(v *testVolume) {
		v.write("a/x", "1")
		v.open("a/x")
		v.watcher.unread = errFault
		v.write("a/x", "2")
		v.want("a", Unknown)
		v.wantDue(rewatchMin)
		v.watcher.unread = nil
		<-time.After(rewatchMin)
		v.Save(v.Context(), v.root)
		v.wantNothingDue()
		v.want("a", Unknown, "a/x")
	},
	"a file that can get no receipt any more is ignored": func(v *testVolume) {
		v.write("a/x", "1")
		file := must.Get(v.root.Open("..data/a/x"))(v)
		defer file.Close()
		v.wantIgnored()
		v.Removing(int(file.Fd()))
		v.wantIgnored("a/x")
	},
}

// TestLost: opens of files without a receipt may have been missed, and others stay known. A write leaves the other files unknown.
func TestLost(t *testing.T) {
	for _, inPlace := range []bool{false, true} {
		inBubble(t, writer.Options{InPlace: inPlace}, func(v *testVolume) {
			v.write("a/x", "1", "b/x", "1", "c/x", "1")
			v.open("a/x")
			v.Lost()
			v.wantDue(0)
			if at := v.wakes[len(v.wakes)-1]; !at.Equal(time.Now()) {
				t.Errorf("woken for %s", at)
			}
			v.Save(v.Context(), v.root)
			v.want("a", Yes)
			v.want("b", Unknown, "b/x")
			v.write("a/x", "1", "b/x", "2", "c/x", "1")
			v.want("b", No, "b/x")
			v.want("c", Unknown, "c/x")
		})
	}
}

// TestLostBesideClose is for the race detector.
func TestLostBesideClose(t *testing.T) {
	r := New(Options{Watcher: &fakeWatcher{}, Wake: func(time.Time) {}})
	var calls sync.WaitGroup
	calls.Go(r.Lost)
	calls.Go(r.Close)
	calls.Wait()
}

// TestTheNextProcess knows the receipts that were saved, and not who opened the other files. It reads them when that is due, or before a
// write.
func TestTheNextProcess(t *testing.T) {
	for _, write := range []bool{false, true} {
		inBubble(t, writer.Options{}, func(v *testVolume) {
			v.write("a/x", "1", "b/x", "1", "versions", "1")
			v.open("a/x")
			v.restart()
			v.Find(time.Now().Add(delay))
			v.wantDue(delay)
			v.bind()
			if write {
				v.write("a/x", "1", "b/x", "1", "c/x", "1", "versions", "1")
				v.want("c", No, "c/x")
			} else {
				v.wait()
			}
			v.wantNothingDue()
			v.want("a", Yes)
			v.want("b", Unknown, "b/x")
			v.wantIgnored("versions", "a/x")
			v.open("b/x")
			v.want("b", Yes)
		})
	}
}

// TestARewrittenFile has no receipt until it is opened again. Opens from before are waited for, unless they are reported for certain.
func TestARewrittenFile(t *testing.T) {
	inBubble(t, writer.Options{InPlace: true}, func(v *testVolume) {
		rewrite := func(content string, drains int) {
			t.Helper()
			v.watcher.drains = 0
			v.write("a/x", content)
			if v.watcher.drains != drains {
				t.Errorf("%d drains, want %d", v.watcher.drains, drains)
			}
			v.wait()
		}
		v.write("a/x", "1")
		rewrite("2", 1) // it was never ignored
		v.want("a", No, "a/x")
		v.open("a/x")
		v.watcher.reads++
		rewrite("3", 1) // a read that began earlier has left opens
		v.want("a", No, "a/x")
		v.open("a/x")
		v.wantIgnored("a/x")
		v.watcher.reads += 2
		rewrite("4", 0)
		v.want("a", No, "a/x")
		v.wantIgnored()
		v.watcher.slow = errFault
		v.watcher.opened([]string{v.id("a/x")}) // of the old content
		rewrite("5", 1)
		v.want("a", Unknown, "a/x")
		v.watcher.slow = nil
		rewrite("6", 1)
		v.want("a", No, "a/x")
		v.watcher.deaf = errFault // nobody hears of the next open
		rewrite("7", 1)
		v.want("a", Unknown, "a/x")
	})
}

// TestARemovedKey: with InPlace its file stays, is empty, and belongs to no object any more.
func TestARemovedKey(t *testing.T) {
	inBubble(t, writer.Options{InPlace: true}, func(v *testVolume) {
		v.write("a/x", "1", "a/y", "1")
		v.write("a/x", "1")
		v.want("a", No, "a/x")
		v.open("a/x")
		v.want("a", Yes)
	})
}
