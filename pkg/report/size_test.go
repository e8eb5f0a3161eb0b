package report

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/opened"
	"github.com/refvol/refvol/pkg/publisher"
	"github.com/refvol/refvol/pkg/record"
	"github.com/refvol/refvol/pkg/volume"
)

// large adds a pod with volumes that all name the same objects. Each object has a name of some bytes that begins with prefix, and one file
// that nobody has opened.
func (w *world) large(pod, prefix string, volumes, objects, name int) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var refs []volume.Ref
	for i := range objects {
		ref := configMap(fmt.Sprintf("%s-%04d-", prefix, i))
		ref.Name += strings.Repeat("x", name-len(ref.Name))
		refs = append(refs, ref)
		w.objects = append(w.objects, manager.ObjectStatus{Ref: ref, State: manager.Present, Watched: true, LastConfirmed: at, Version: volume.Version{UID: types.UID(strings.Repeat("u", 36)), ResourceVersion: "123456789"}})
	}
	for i := range volumes {
		v := publisher.VolumeStatus{
			VolumeID: fmt.Sprintf("csi-%064d", i), Target: fmt.Sprintf("/k/pods/x/volumes/kubernetes.io~csi/volume-%d/mount", i),
			Pod: volume.Pod{Namespace: "shop", Name: pod, UID: types.UID(pod)}, Condition: publisher.ConditionCurrent, Since: at, Bytes: 4096, Refs: refs,
			Record: record.Record{Shown: record.Versions{}}, Opened: map[volume.Ref]*opened.Object{}, OpensWatched: true,
		}
		for j, ref := range refs {
			v.Shown[ref] = w.objects[len(w.objects)-objects+j].Version
			v.Opened[ref] = &opened.Object{State: opened.No, Unopened: []string{"file"}, Count: 1, Since: at}
		}
		w.volumes = append(w.volumes, v)
	}
}

// meter counts what is written, and calls half once, when half of a size has been written.
type meter struct {
	written, size int
	half          func()
}

func (m *meter) Write(p []byte) (int, error) {
	if m.written += len(p); m.half != nil && m.written >= m.size/2 {
		m.half()
		m.half = nil
	}
	return len(p), nil
}

func (w *world) size(t *testing.T) int {
	t.Helper()
	m := &meter{}
	if err := w.reporter().Collect(nil).Write(m); err != nil {
		t.Fatal(err)
	}
	return m.written
}

// TestNamesOnce: long names count once for each object, and not for each volume.
func TestNamesOnce(t *testing.T) {
	const volumes, objects, short, long = 128, 256, 13, 253
	var sizes []int
	for _, name := range []int{short, long} {
		w := &world{}
		w.large("web", "o", volumes, objects, name)
		sizes = append(sizes, w.size(t))
	}
	t.Logf("%d volumes with %d objects: %d KiB with names of %d bytes, %d KiB with names of %d", volumes, objects, sizes[0]>>10, short, sizes[1]>>10, long)
	const ofTime = 10 // observedAt has up to 9 digits after the seconds
	if more := sizes[1] - sizes[0]; more > objects*(long-short)+ofTime {
		t.Errorf("long names add %d bytes, want at most %d", more, objects*(long-short)+ofTime)
	}
	if limit := volumes*objects*112 + objects*512 + volumes*512; sizes[1] > limit {
		t.Errorf("%d bytes, want at most %d", sizes[1], limit)
	}
}

// TestMemory: a report of 10 pods (100 in the long form) with 1,024 pairs of volume and object is never held. What it is created from grows with the number of objects and volumes,
// and not with their names.
func TestMemory(t *testing.T) {
	const volumes, objects = 8, 128
	pods := 10
	if os.Getenv("REFVOL_LONG") != "" {
		pods = 100
	}
	for what, name := range map[string]func(pod, volume int) string{
		"the same objects":             func(int, int) string { return "o" },
		"objects of each pod":          func(pod, _ int) string { return fmt.Sprint(pod) },
		"objects of each of 8 volumes": func(pod, volume int) string { return fmt.Sprint(pod, "-", volume) },
	} {
		w := &world{}
		for pod := range pods {
			for volume := range volumes {
				w.large(fmt.Sprint("pod-", pod), name(pod, volume), 1, objects, 253)
			}
		}
		size := w.size(t)
		var before, collected, half, end runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		began := time.Now()
		stream := w.reporter().Collect(nil)
		collecting := time.Since(began)
		runtime.GC()
		runtime.ReadMemStats(&collected)
		m := &meter{size: size, half: func() {
			runtime.GC()
			runtime.ReadMemStats(&half)
		}}
		began = time.Now()
		if err := stream.Write(m); err != nil {
			t.Fatal(err)
		}
		writing := time.Since(began)
		runtime.ReadMemStats(&end)
		held := max(collected.HeapAlloc, half.HeapAlloc) - before.HeapAlloc
		t.Logf("%d pods with %d pairs each, of %s: %.1f MiB written; %.1f MiB held, %.1f MiB allocated; %s to collect, %s to write",
			pods, volumes*objects, what, mib(uint64(size)), mib(held), mib(end.TotalAlloc-before.TotalAlloc), collecting.Round(time.Millisecond), writing.Round(time.Millisecond))
		if limit := uint64(len(w.objects)*352 + pods*volumes*objects*20 + len(w.volumes)*1024); held > limit || held > uint64(size)*2/3 {
			t.Errorf("of %s: %d bytes are held for a report of %d, want at most %d", what, held, size, limit)
		}
		runtime.KeepAlive(w)
	}
}

func mib(n uint64) float64 { return float64(n) / (1 << 20) }

// TestLongTexts: no text is repeated at full length for each object or volume.
func TestLongTexts(t *testing.T) {
	ref := configMap("app")
	v := publisher.VolumeStatus{
		Condition: "VolumeUpdateFailed", Reason: strings.Repeat("ü", 600), Refs: []volume.Ref{ref}, Record: record.Record{Shown: map[volume.Ref]volume.Version{ref: {UID: "u"}}}, OpensWatched: true,
		Opened: map[volume.Ref]*opened.Object{ref: {State: opened.No, Reason: strings.Repeat("r", 2000), Count: 20}},
	}
	for range 20 {
		v.Opened[ref].Unopened = append(v.Opened[ref].Unopened, "a"+strings.Repeat("ü", 2000))
	}
	w := &world{volumes: []publisher.VolumeStatus{v}, objects: []manager.ObjectStatus{{Ref: ref, Err: errors.New(strings.Repeat("e", 1025))}}}
	got := w.report(t, 0).Volumes[0]
	o := got.Objects[0]
	for what, text := range map[string]string{"reason": got.Reason, "reason of opens": got.OpenedReason, "object's reason": o.Reason} {
		if len(text) > 1024 || len(text) < 1020 || !strings.HasSuffix(text, "…") || !utf8.ValidString(text) {
			t.Errorf("the %s has %d bytes: %.20s", what, len(text), text)
		}
	}
	if len(o.Unopened) != 8 || o.UnopenedCount != 20 || len(o.Unopened[7]) != 128 || !strings.HasSuffix(o.Unopened[7], "ü…") {
		t.Errorf("%d paths of %d: %q", len(o.Unopened), o.UnopenedCount, o.Unopened)
	}
	for text, want := range map[string]string{strings.Repeat("e", 1024): strings.Repeat("e", 1024), "": ""} {
		if got := cut(text, maxReason); got != want {
			t.Errorf("got %q", got)
		}
	}
}

// TestReportWhileItChanges: volumes and objects that appear or go after the report was collected don't change it.
func TestReportWhileItChanges(t *testing.T) {
	w := &world{}
	w.large("web", "o", 2, 3, 20)
	stream := w.reporter().Collect(nil)
	w.volumes, w.objects = nil, nil
	if got := read(t, stream); len(got.Volumes) != 2 || len(got.Objects) != 3 {
		t.Errorf("got %d volumes, %d objects", len(got.Volumes), len(got.Objects))
	}
	if err := stream.Write(io.Discard); err != nil {
		t.Error(err)
	}
}
