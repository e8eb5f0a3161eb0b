package payload

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/refvol/refvol/pkg/volume"
)

// maxHeap is what one render may take beside the objects.
const (
	maxHeap  = 64 << 20
	maxFiles = 4096
)

// allocated returns how many bytes do allocates. That is more than it ever holds, and it
// doesn't depend on when the garbage collector runs.
func allocated(do func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// numbered returns an object of n keys with values of some bytes.
func numbered(name string, n, size int) *volume.Object {
	o := object(volume.ConfigMap, name)
	value := []byte(strings.Repeat("v", size))
	for i := range n {
		o.Data[strconv.FormatInt(int64(i), 36)] = value
	}
	return o
}

// Attributes that ask for the same thing many times are refused before that is made.
func TestRenderIsBounded(t *testing.T) {
	var same []volume.Source
	for i := range 2800 {
		same = append(same, source(i, volume.ConfigMap, "big"))
	}
	from := func(n int, prefix string) []volume.Source {
		env := volume.Env{}
		for range n {
			env.From = append(env.From, envFrom(volume.ConfigMap, "big", prefix))
		}
		return []volume.Source{envSource(0, "e", env)}
	}
	const tooLong = "sources[0].env: Too long: the joined files of a volume and the names and values of its env files may take 4194304 bytes together, with 64 for each variable, counted as often as it is set"
	for _, c := range []struct {
		name    string
		object  *volume.Object
		sources []volume.Source
		want    string
	}{
		{
			"one object in many sources", numbered("big", 3000, 1), same,
			"sources[1].configMap: Too many: the volume may show 4096 keys, items and env files, each counted as often as it is named: one for each page of --max-volume-size",
		}, {
			"a long prefix", numbered("big", 10000, 0), from(1, strings.Repeat("P", 60000)),
			tooLong,
		}, {
			"the same variables many times", numbered("big", 10000, 0), from(2000, ""),
			tooLong,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			var err error
			n := allocated(func() { _, err = Render(spec(c.sources...), objects(c.object), Options{MaxFiles: maxFiles}) })
			t.Logf("%d KiB allocated", n>>10)
			if n > maxHeap {
				t.Errorf("allocated %d MiB, more than %d", n>>20, maxHeap>>20)
			}
			if err == nil || err.Error() != c.want {
				t.Errorf("\ngot  %.300v\nwant %s", err, c.want)
			}
			var tooLarge *TooLargeError
			if !errors.As(err, &tooLarge) {
				t.Errorf("the error is a %T", err)
			}
		})
	}
}

// Whatever a pod's author writes, and however large the objects are, a render allocates
// no more than its budget.
func TestHostileRendersAreBounded(t *testing.T) {
	seed := rand.Uint64()
	if text := os.Getenv("REFVOL_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	runs := 30
	if os.Getenv("REFVOL_LONG") != "" {
		runs = 1000
	}
	t.Logf("REFVOL_SEED=%d", seed)
	h := hostile{rand.New(rand.NewPCG(seed, 0)), hostileObjects()}
	outcomes, most := map[string]int{}, uint64(0)
	for i := range runs {
		text := h.sources()
		parsed, err := volume.Parse(map[string]string{"sources": text}, volume.Pod{Namespace: "ns", Name: "p"})
		if err != nil {
			t.Fatalf("run %d: %d bytes are refused: %.300v", i, len(text), err)
		}
		n := allocated(func() { _, err = Render(parsed, h.objects, Options{ForgiveDeleted: true, MaxFiles: maxFiles}) })
		most = max(most, n)
		var tooLarge *TooLargeError
		switch {
		case err == nil:
			outcomes["rendered"]++
		case errors.As(err, &tooLarge):
			outcomes["refused as too large"]++
		default:
			outcomes["refused for its paths"]++
		}
		if n > maxHeap {
			t.Errorf("run %d: allocated %d KiB, more than %d; it ended in %.300v; the sources begin with %.500s", i, n>>10, maxHeap>>10, err, text)
		}
	}
	t.Logf("%v, at most %d MiB", outcomes, most>>20)
}

// hostileObjects are as large as the API server takes them, each in another way.
func hostileObjects() Objects {
	values := values(volume.ConfigMap, "quotes")
	for i := range 1000 {
		values.Data[fmt.Sprint("Q", i)] = []byte(strings.Repeat("'", 1000))
	}
	return objects(
		numbered("keys", 160000, 1), // one-byte values
		numbered("tens", 50000, 20), // of middling size
		numbered("empty", 3000, 0),  // and all of it again and again
		numbered("few", 100, 10000), // large values
		numbered("one", 1, 1000000), // a single one
		values,                      // which a shell's file quadruples
		object(volume.Secret, "keys", "a", "b"),
	)
}

// hostile makes sources of nearly the largest size.
type hostile struct {
	*rand.Rand
	objects Objects
}

func (h hostile) pick(from ...string) string { return from[h.IntN(len(from))] }

func (h hostile) name() string {
	return h.pick("keys", "tens", "empty", "few", "one", "quotes", "gone")
}

// sources returns up to 256 sources, each with a share of the room.
func (h hostile) sources() string {
	const room = volume.MaxAttributesSize - 100
	n := 1 + h.IntN(256)
	if h.IntN(2) == 0 {
		n = 1 + h.IntN(5)
	}
	kind := h.IntN(4) // 3 is a mix
	var b strings.Builder
	for i := range n {
		var s string
		share := room/n - 20
		switch (kind + h.IntN(3)*(kind/3)) % 3 {
		case 0:
			s = fmt.Sprintf("{configMap: {optional: true, name: %s}},", h.name())
		case 1:
			s = h.items(i, share)
		default:
			s = h.env(i, share)
		}
		b.WriteString(s)
	}
	return "[" + b.String() + "]"
}

func (h hostile) items(i, room int) string {
	head := fmt.Sprintf("{configMap: {optional: true, name: %s, items: [{key: k, path: s%d}", h.name(), i)
	var b strings.Builder
	b.WriteString(head)
	for j := 0; ; j++ {
		dots := strings.Repeat(h.pick("a/", "..a/", "a.../"), h.IntN(20))
		item := fmt.Sprintf(",{key: %q, path: d%d/%s%d}", strconv.FormatInt(int64(h.IntN(3000)), 36), i, dots, j)
		if b.Len()+len(item)+4 > room {
			return b.String() + "]}},"
		}
		b.WriteString(item)
	}
}

func (h hostile) env(i, room int) string {
	head := fmt.Sprintf("{env: {path: e%d, format: %s, envFrom: [", i, h.pick("dotenv", "shell"))
	const tail = "]}},"
	prefix := strings.Repeat(h.pick("P", ".", "-"), h.IntN(1+max(0, room-len(head)-100)))
	from := fmt.Sprintf("{prefix: %q, configMapRef: {optional: true, name: %s}},", prefix, h.name())
	if len(head)+len(from) > room {
		from = ""
	}
	middle := "], env: ["
	vars := ""
	if h.IntN(2) == 0 {
		value := h.pick("$(A)$(A)", "$(A)", "$$$$", "$(B", strings.Repeat("x", 50))
		variable := fmt.Sprintf("{name: A, value: \"%s\"},", value)
		vars = strings.Repeat(variable, max(0, room-len(head)-len(from)-len(middle)-len(tail))/len(variable))
	} else {
		more := fmt.Sprintf("{configMapRef: {optional: true, name: %s}},", h.name())
		from += strings.Repeat(more, max(0, room-len(head)-len(from)-len(middle)-len(tail))/len(more))
	}
	return head + from + middle + vars + tail
}
