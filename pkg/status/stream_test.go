package status

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestStream: what is written piece by piece is read as the whole report, and nothing shorter is a report.
func TestStream(t *testing.T) {
	want := sample(samples()...)
	want.Others = []PodVolumes{{PodUID: "uid-3", Volumes: []string{"a", "b"}}}
	var body bytes.Buffer
	if err := stream(want).Write(&body); err != nil {
		t.Fatal(err)
	}
	if got, err := Read(bytes.NewReader(body.Bytes())); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v: got %+v", err, got)
	}
	text := strings.TrimSuffix(body.String(), "\n")
	for n := range len(text) {
		if _, err := Read(strings.NewReader(text[:n])); !errors.Is(err, ErrFormat) {
			t.Fatalf("the first %d of %d bytes are a report: %v", n, len(text), err)
		}
	}
	for n := range len(text) {
		if err := stream(want).Write(&full{left: n}); !errors.Is(err, errFault) {
			t.Fatalf("a fault after %d bytes: %v", n, err)
		}
	}
}

// TestStreamEndsWithItsWriter: for a client that has gone, no more volumes are created.
func TestStreamEndsWithItsWriter(t *testing.T) {
	s, created := stream(sample()), 0
	s.Volumes = func(yield func(*Volume) bool) {
		for created < 100 {
			created++
			if !yield(&Volume{Reason: strings.Repeat("x", 1<<13)}) {
				return
			}
		}
	}
	if err := s.Write(&full{}); !errors.Is(err, errFault) || created > 1 {
		t.Errorf("%d volumes were created: %v", created, err)
	}
}

// full is a writer that fails after some bytes.
type full struct{ left int }

func (f *full) Write(p []byte) (int, error) {
	if f.left -= len(p); f.left < 0 {
		return 0, errFault
	}
	return len(p), nil
}

// TestAnswerThatEndsEarly: a client gets an error, and not a part of the report, if the plugin can't write all of it.
func TestAnswerThatEndsEarly(t *testing.T) {
	report := sample(samples()...)
	report.Volumes[4].Since = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) // JSON has no such year
	report.Volumes[0].Reason = strings.Repeat("x", 1<<16)
	address := serve(t, answering(func() *Report { return report }))
	if report, err := fetch(t.Context(), address); !errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, ErrFormat) {
		t.Errorf("got %v, %v", report, err)
	}
}

// TestHostileIndices: an index that means nothing is refused.
func TestHostileIndices(t *testing.T) {
	for named, want := range map[string]string{
		`{"object": 0, "shown": 0}`:                            "",
		`{"object": 1}`:                                        "",
		`{"object": 2}`:                                        "volumes[1].objects[0].object: Invalid value: 2: there are 2 objects",
		`{"object": -1}`:                                       "Invalid value: -1",
		`{"object": 0, "shown": 1}`:                            "volumes[1].objects[0].shown: Invalid value: 1: the object has 1 versions",
		`{"object": 0, "shown": -1}`:                           "Invalid value: -1",
		`{"object": 1, "shown": 0}`:                            "the object has 0 versions",
		`{"object": 99999999999999999999}`:                     "cannot unmarshal number",
		`{"object": "0"}`:                                      "cannot unmarshal string",
		`{"object": 0}]}], "objects": [null], "x": [{"y": [{}`: "objects[0]: Required value",
	} {
		body := head + `, "objects": [{"versions": [{"uid": "u"}]}, {}], "volumes": [{"objects": []}, {"objects": [` + named + `]}]}`
		_, err := Read(strings.NewReader(body))
		if (err == nil) != (want == "") || err != nil && (!errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: got %v, want %q", named, err, want)
		}
	}
}

// TestNumber: after volumes were removed, only what the others name is left.
func TestNumber(t *testing.T) {
	report := sample(samples()...)
	if len(report.Objects) != 4 {
		t.Fatalf("got %d objects", len(report.Objects))
	}
	report.Volumes = slices.Delete(report.Volumes, 0, 2)
	report.Number()
	var got []string
	for _, v := range report.Volumes {
		for _, o := range v.Objects {
			got = append(got, fmt.Sprint(report.Objects[o.Index].Name, " ", o.ShownIndex != nil, " ", len(o.Versions)))
		}
	}
	if want := []string{"ca true 1", "app true 1", "late false 0"}; !slices.Equal(got, want) || len(report.Objects) != 3 {
		t.Errorf("got %q of %d objects, want %q", got, len(report.Objects), want)
	}
}
