package payload

import (
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/refvol/refvol/pkg/volume"
)

// maxHeap limits the memory of one render beside the objects.
const (
	maxHeap  = 64 << 20
	maxFiles = 8192
)

// allocated returns how many bytes do allocates. That is more than it ever uses at once, and doesn't depend on the garbage collector.
func allocated(do func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// numbered returns an object with n keys, and values of some bytes.
func numbered(name string, n, size int) *volume.Object {
	o := object(volume.ConfigMap, name)
	value := []byte(strings.Repeat("v", size))
	for i := range n {
		o.Data[strconv.FormatInt(int64(i), 36)] = value
	}
	return o
}

// Attributes that ask for the same thing many times are refused before it is created.
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
	references := strings.Repeat("$(E)", 128<<10) // half a mebibyte
	unused := volume.Env{Vars: []volume.EnvVar{{Name: "B", Value: strings.Repeat("x", 100<<10)}, {Name: "U", Unknown: true}}}
	empty := volume.Env{Vars: []volume.EnvVar{{Name: "E"}}}
	for i := range 100 {
		unused.Vars = append(unused.Vars, volume.EnvVar{Name: fmt.Sprint("V", i), Value: "$(B)$(U)"})
		empty.Vars = append(empty.Vars, volume.EnvVar{Name: fmt.Sprint("V", i), Value: references})
	}
	var texts []volume.Source
	for i := range 100 {
		texts = append(texts, volume.Source{Path: fmt.Sprint("t", i), Field: fmt.Sprintf("sources[%d].expand", i), Expand: &volume.Expand{
			Text: volume.Reference{Ref: volume.Ref{Kind: volume.ConfigMap, Namespace: "ns", Name: "big"}, Key: "text", Field: "text"}, Env: volume.Env{Vars: []volume.EnvVar{{Name: "E"}}},
		}})
	}
	const tooLong = "sources[0].env: Too long: the joined and expanded files of a volume and the names and values of its variables may take 4194304 bytes together, with 64 for each variable, counted as often as it is set"
	for _, c := range []struct {
		name    string
		object  *volume.Object
		sources []volume.Source
		want    string
	}{
		{
			"one object in many sources", numbered("big", 3000, 1), same,
			"sources[2].configMap: Too many: the volume may show 8192 keys, items and other files, each counted as often as it is named: one for each page of --max-volume-size",
		}, {
			"a long prefix", numbered("big", 10000, 0), from(1, strings.Repeat("P", 60000)),
			tooLong,
		}, {
			"the same variables many times", numbered("big", 10000, 0), from(2000, ""),
			tooLong,
		}, {
			"values that are made and not used", numbered("big", 1, 1),
			[]volume.Source{envSource(0, "e", unused)},
			tooLong,
		}, {
			"values that become empty", numbered("big", 1, 1),
			[]volume.Source{envSource(0, "e", empty)},
			tooLong,
		}, {
			"texts that become empty", &volume.Object{Ref: volume.Ref{Kind: volume.ConfigMap, Namespace: "ns", Name: "big"}, Data: map[string][]byte{"text": []byte(references)}}, texts,
			strings.Replace(tooLong, "sources[0].env", "sources[7].expand", 1),
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

// A volume may show just as many keys, items and other files as the limit says, in whatever order.
func TestRenderIsFull(t *testing.T) {
	const cm = volume.ConfigMap
	for name, sources := range map[string][]volume.Source{
		"keys":             {source(0, cm, "three")},
		"items":            {source(0, cm, "three", "0:a", "1:b", "0:c")},
		"the same path":    {source(0, cm, "three", "0:a", "1:b"), source(1, cm, "three", "2:a")},
		"env files":        {envSource(0, "a", volume.Env{}), envSource(1, "b", volume.Env{}), envSource(2, "c", volume.Env{})},
		"a versions file":  {source(0, cm, "three", "0:a", "1:b"), {Path: "v", Versions: true, Field: "sources[1].versions"}},
		"and another file": {joined("ConfigMap/three/0"), source(1, cm, "three", "0:a", "1:b")},
	} {
		for limit, fits := range map[int]bool{2: false, 3: true} {
			_, err := Render(spec(sources...), objects(numbered("three", 3, 1)), Options{MaxFiles: limit})
			var tooLarge *TooLargeError
			if fits && err != nil || !fits && !errors.As(err, &tooLarge) {
				t.Errorf("%s: with a limit of %d: %v", name, limit, err)
			}
		}
	}
}
