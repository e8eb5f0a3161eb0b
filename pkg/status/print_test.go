package status

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/refvol/refvol/internal/expect"
	"github.com/refvol/refvol/internal/must"
)

func ago(d time.Duration) *time.Time { return new(noon.Add(-d)) }

func samples() []Volume {
	shown := func(resourceVersion string) *Version { return &Version{UID: "u", ResourceVersion: resourceVersion} }
	app := VolumeObject{Object: &Object{Kind: "ConfigMap", Namespace: "shop", Name: "app", State: "present", Followed: true, ProvenAt: ago(31 * time.Second)}, Shown: shown("812"), OpenedAt: ago(30 * time.Second)}
	db := VolumeObject{Object: &Object{Kind: "Secret", Namespace: "platform", Name: "db", State: "denied", Followed: true, ProvenAt: ago(3 * time.Hour)}}
	ca := VolumeObject{Object: &Object{Kind: "ConfigMap", Namespace: "shop", Name: "ca", State: "present", ProvenAt: ago(240 * time.Hour)}, Shown: shown("7"), Opened: "no"}
	ca.Shown.Revision = "4f2a91c"
	late := VolumeObject{Object: &Object{Kind: "ConfigMap", Namespace: "shop", Name: "late", State: "unknown", Followed: true}}
	web := Pod{Namespace: "shop", Name: "web-0", UID: "uid-1"}
	return []Volume{
		{
			VolumeID: "csi-1", Name: "settings", Pod: web, Condition: "RefForbidden", Abnormal: true, Since: noon.Add(-5 * time.Minute), Bytes: 8192,
			Reason: `Secret "platform/db": the service account shop/web may not get it: ` + strings.Repeat("why ", 20), Objects: []VolumeObject{app, db},
		},
		{VolumeID: "csi-2", Name: "many", Pod: web, Condition: "Current", Since: noon.Add(-50 * time.Hour), Bytes: 4 << 20, Objects: []VolumeObject{app, ca, app, ca, ca}},
		{VolumeID: "csi-3", Name: "ca", Pod: web, Condition: "Current", Since: noon, WithoutToken: true, Objects: []VolumeObject{ca}},
		{VolumeID: "csi-4", Name: "late", Pod: web, Condition: "Publishing", Since: noon.Add(-time.Second), Objects: []VolumeObject{app, late}},
		{VolumeID: "csi-5", Name: "old", Pod: Pod{UID: "uid-2"}, Condition: "Unknown", Since: noon.Add(-time.Minute), Reason: "not taken over yet"},
	}
}

func (t Table) text(tt *testing.T, reports ...*Report) string {
	tt.Helper()
	var out bytes.Buffer
	counts := &Counts{Nodes: len(reports)}
	for _, r := range reports {
		counts.Add(r)
	}
	must.Do(tt, t.Write(&out, counts, reports...))
	return out.String()
}

func TestTable(t *testing.T) {
	expect.Equal(t, "the table", Table{}.text(t, sample(samples()...)), strings.TrimLeft(`
NORMAL  NODE    POD         VOLUME    CONDITION     SINCE  PROVEN  SIZE  OBJECTS                                                     REASON
no      node-1  shop/web-0  settings  RefForbidden  5m     3h      8Ki   configmap/app@812,secret/platform/db@-                      Secret "platform/db": the service account shop/web may not get it: `+strings.Repeat("why ", 20)+`
yes     node-1  uid-2       old       Unknown       60s    -       0     -                                                           not taken over yet
yes     node-1  shop/web-0  late      Publishing    1s     never   0     configmap/app@812,configmap/late@-                          -
yes     node-1  shop/web-0  ca        Current       0s     -       0     configmap/ca@7                                              -
yes     node-1  shop/web-0  many      Current       2d2h   31s     4Mi   configmap/app@812,configmap/ca@7,configmap/app@812,+2 more  -
5 volumes on 1 node, 1 abnormal
`, "\n"))
	expect.Equal(t, "the table", Table{}.text(t, sample()), "0 volumes on 1 node, 0 abnormal\n")
}

func TestWideTable(t *testing.T) {
	got := Table{Wide: true}.text(t, sample(samples()[0], samples()[2]))
	expect.Equal(t, "the table", got, strings.TrimLeft(`
NORMAL  NODE    POD         VOLUME    CONDITION     SINCE  PROVEN  SIZE  TOKEN    OPENED  POD-UID  VOLUME-ID  OBJECTS                                                  REASON
no      node-1  shop/web-0  settings  RefForbidden  5m     3h      8Ki   -        yes     uid-1    csi-1      configmap/app@812(present),secret/platform/db@-(denied)  `+samples()[0].Reason+`
yes     node-1  shop/web-0  ca        Current       0s     -       0     missing  no      uid-1    csi-3      configmap/ca@7=4f2a91c(present)                          -
2 volumes on 1 node, 1 abnormal
`, "\n"))
}

// TestAbnormalTable: volumes that are not abnormal are left out, but counted.
func TestAbnormalTable(t *testing.T) {
	report := sample(samples()...)
	report.NotReady = []string{"rights"}
	got := Table{Abnormal: true}.text(t, report)
	lines := strings.Split(got, "\n")
	if len(lines) != 5 || lines[0] != "The plugin on node-1 is not ready: rights" || !strings.HasPrefix(lines[2], "no      node-1  shop/web-0  settings") || lines[3] != "5 volumes on 1 node, 1 abnormal" {
		t.Errorf("got\n%s", got)
	}
}

// TestWatchPrintsEachChange: a change is printed each time it happens, also one that was there before. A new age is no change.
func TestWatchPrintsEachChange(t *testing.T) {
	good, bad := samples()[1], samples()[1]
	bad.Condition, bad.Abnormal, bad.Reason = "VolumeUpdateFailed", true, "disk"
	later := sample(bad)
	later.ObservedAt = later.ObservedAt.Add(time.Hour)
	unready := func(conditions ...string) *Report {
		r := sample()
		r.NotReady = conditions
		return r
	}
	for name, test := range map[string]struct {
		abnormal bool
		reports  []*Report
		want     string
	}{
		"a volume":              {false, []*Report{sample(good), sample(bad), later, sample(good), sample(bad)}, "Current, VolumeUpdateFailed, , Current, VolumeUpdateFailed"},
		"only abnormal volumes": {true, []*Report{sample(good), sample(bad), later, sample(good), sample(good), sample(bad)}, ", VolumeUpdateFailed, , Current, , VolumeUpdateFailed"},
		"a volume that is gone": {false, []*Report{sample(bad), sample(), sample(bad)}, "VolumeUpdateFailed, , VolumeUpdateFailed"},
		"a plugin":              {false, []*Report{unready("rights"), unready("rights"), unready(), unready("rights")}, "not ready, , , not ready"},
		"two reasons":           {false, []*Report{unready("rights"), unready("rights", "registration"), unready("rights")}, "not ready, not ready, "},
	} {
		var got []string
		table := Table{NoHeaders: true, Abnormal: test.abnormal, Printed: &Printed{}}
		for _, report := range test.reports {
			text, what := table.text(t, report), ""
			for _, word := range []string{"Current", "VolumeUpdateFailed", "not ready"} {
				if strings.Count(text, word) == 1 {
					what += word
				}
			}
			got = append(got, what)
		}
		expect.Equal(t, name, strings.Join(got, ", "), test.want)
	}
}

// TestPrintedForgets: only what is there now is remembered, and a node that did not answer stays as it was.
func TestPrintedForgets(t *testing.T) {
	empty := Table{NoHeaders: true, Printed: &Printed{}}
	for i, want := range []bool{true, false} {
		if got := empty.text(t); got != "" || empty.Printed.Changed() != want {
			t.Errorf("look %d at nothing, changed: %t\n%s", i, !want, got)
		}
	}
	printed := &Printed{}
	table := Table{NoHeaders: true, Printed: printed}
	if got := table.text(t, sample(samples()...)); strings.Count(got, "\n") != 5 || !printed.Changed() {
		t.Errorf("first\n%s", got)
	}
	printed.Keep(sample().Node)
	if got := table.text(t); got != "" || len(printed.before[sample().Node]) != 5 || printed.Changed() {
		t.Errorf("without an answer\n%s%v", got, printed.before)
	}
	if got := table.text(t, sample(samples()[:1]...)); got != "" || len(printed.before[sample().Node]) != 1 || !printed.Changed() {
		t.Errorf("one is left\n%s%v", got, printed.before)
	}
	if got := table.text(t); got != "" || len(printed.before) != 0 {
		t.Errorf("the node is gone\n%s%v", got, printed.before)
	}
}

// TestPrintedAbnormal: a volume that was abnormal is printed once when it is normal, and then forgotten.
func TestPrintedAbnormal(t *testing.T) {
	printed, volume := &Printed{}, samples()[0]
	for i, abnormal := range []bool{true, false, false, true} {
		volume.Abnormal = abnormal
		table := Table{NoHeaders: true, Abnormal: true, Printed: printed}
		if got := table.text(t, sample(volume)); (got != "") != (i != 2) {
			t.Errorf("look %d: %q", i, got)
		}
	}
	(*Printed)(nil).forget("node", "id")
}

// TestShows: a volume shows a version if the object has it, or is immutable and the volume current.
func TestShows(t *testing.T) {
	at, later, other := Version{UID: "u", ResourceVersion: "1"}, Version{UID: "u", ResourceVersion: "2"}, Version{UID: "w", ResourceVersion: "1"}
	for name, test := range map[string]struct {
		shown     *Version
		immutable bool
		condition string
		want      bool
	}{
		"nothing":                    {nil, true, "Current", false},
		"it":                         {&at, false, "Stale", true},
		"another version":            {&later, false, "Current", false},
		"an earlier object":          {&other, true, "Current", false},
		"it, but for a label":        {&later, true, "Current", true},
		"immutable, and not current": {&later, true, "Stale", false},
	} {
		o := &VolumeObject{Object: &Object{Immutable: test.immutable}, Shown: test.shown}
		if got := (&Volume{Condition: test.condition}).Shows(o, at); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// TestErr: a plugin that is not ready, or lacks a right, is abnormal too.
func TestErr(t *testing.T) {
	for want, change := range map[string]func(*Report){
		"": func(*Report) {},
		"status: volumes that are abnormal: 1 of 1":                func(r *Report) { r.Volumes[0].Abnormal = true },
		"status: publishes that failed in the last ten minutes: 1": func(r *Report) { r.Refused = make([]Refusal, 1) },
		"status: plugins that are not ready: 1":                    func(r *Report) { r.NotReady = []string{"a", "b"} },
		"status: plugins that lack a right: 1":                     func(r *Report) { r.MissingRights = []string{"a", "b"} },
	} {
		report := sample(samples()[1])
		change(report)
		counts := &Counts{Nodes: 1}
		counts.Add(report)
		err := counts.Err()
		if (err == nil) != (want == "") || err != nil && (err.Error() != want || !errors.Is(err, ErrAbnormal)) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	counts := &Counts{Nodes: 3, Problems: 1, NotReported: 2}
	expect.Equal(t, "the error", counts.Err().Error(), "status: nodes with a problem: 1 of 3, volumes that no plugin reports: 2")
}

// TestOpened: the worst state of the shown objects counts.
func TestOpened(t *testing.T) {
	opened := func(states ...string) (v Volume) {
		for _, state := range states {
			o := VolumeObject{Object: &Object{}, Shown: &Version{}, Opened: state}
			switch state {
			case "yes":
				o.Opened, o.OpenedAt = "", ago(time.Minute)
			case "-":
				o.Shown = nil
			}
			v.Objects = append(v.Objects, o)
		}
		return v
	}
	for want, v := range map[string]Volume{
		"yes": opened("yes", "-", "yes"), "no": opened("yes", "no"), "unknown": opened("no", "unknown", "yes"), "unsupported": opened("unsupported", "yes"),
		"": opened("-"), "unsupported ": opened(""), // of a release that does not tell
	} {
		expect.Equal(t, "opened", (row{volume: &v}).opened(), strings.TrimSpace(want))
	}
}

// TestTableOfNodes: the volumes of several nodes are in one order, with ages by their own clocks.
func TestTableOfNodes(t *testing.T) {
	other := sample(samples()[2], samples()[0])
	other.Node, other.ObservedAt = "node-2", noon.Add(time.Hour)
	got := Table{NoHeaders: true}.text(t, sample(samples()[2]), other)
	var lines []string
	for line := range strings.Lines(got) {
		lines = append(lines, strings.Join(strings.Fields(line)[:6], " "))
	}
	expect.Equal(t, "the table", strings.Join(lines, "\n"), `no node-2 shop/web-0 settings RefForbidden 65m
yes node-1 shop/web-0 ca Current 0s
yes node-2 shop/web-0 ca Current 60m`)
}

func TestEncode(t *testing.T) {
	want := sample(samples()...)
	for output, toJSON := range map[string]func([]byte) ([]byte, error){
		OutputJSON: func(text []byte) ([]byte, error) { return text, nil }, OutputYAML: yaml.YAMLToJSON,
	} {
		var out bytes.Buffer
		must.Do(t, Encode(&out, output, want))
		text := must.Get(toJSON(out.Bytes()))(t)
		expect.Equal(t, output, must.Get(Read(bytes.NewReader(text)))(t), want)
		expect.Equal(t, output+" is JSON", strings.HasPrefix(out.String(), "{"), output == OutputJSON)
		if !strings.Contains(out.String(), "2026-01-01T11:55:00Z") || !strings.HasSuffix(out.String(), "\n") || strings.HasSuffix(out.String(), "\n\n") {
			t.Errorf("%s:\n%s", output, out.String())
		}
	}
	if err := Encode(&bytes.Buffer{}, OutputJSON, make(chan int)); err == nil {
		t.Error("no error")
	}
	for _, write := range []error{Encode(failing{}, OutputYAML, want), Table{}.Write(failing{}, &Counts{}, want), Table{}.Write(failing{}, &Counts{})} {
		expect.Is(t, "a write that fails", write, errFault)
	}
}

func (failing) Write([]byte) (int, error) { return 0, errFault }

// TestReasonsInTheTable: for the environment volume, the reason says that no container has started with what it shows. For an older answer, it
// names the versions of one object and says what to do.
func TestReasonsInTheTable(t *testing.T) {
	at, shown := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), &Version{UID: "u", ResourceVersion: "2"}
	object := func(opened string) VolumeObject {
		o := VolumeObject{Object: &Object{Kind: "Secret", Namespace: "shop", Name: "db"}, Shown: shown, Opened: opened, ShownSince: &at}
		if opened == "" {
			o.OpenedAt = &at
		}
		return o
	}
	notShown := object("no")
	notShown.Shown = nil
	app, db := VolumeObject{Object: &Object{Kind: "ConfigMap", Namespace: "shop", Name: "app"}}, VolumeObject{Object: &Object{Kind: "Secret", Namespace: "shop", Name: "db", OlderAnswer: &OlderAnswer{ResourceVersion: "11", Known: "20"}}}
	canary := VolumeObject{Object: &Object{Kind: "ConfigMap", Namespace: "shop", Name: "app", Canary: "10%"}, Absent: &Version{UID: "u", ResourceVersion: "1"}}
	const (
		variables = "the containers run with older variables, or have not started, since 2026-01-01T00:00:00Z"
		answer    = `Secret "shop/db": the API server answers with resourceVersion 11, older than 20: if etcd was restored with a bumped revision, write the object again, otherwise restart all plugins and then replace the pods`
	)
	for _, test := range []struct {
		name, reason string
		objects      []VolumeObject
		want         string
	}{
		{EnvironmentVolume, "", []VolumeObject{object(""), object("no")}, variables},
		{EnvironmentVolume, "stale", []VolumeObject{object("no")}, "stale"},
		{EnvironmentVolume, "", []VolumeObject{object(""), object("unknown"), object("unsupported"), notShown}, "-"},
		{"settings", "", []VolumeObject{object("no")}, "-"},
		{"settings", "stale", []VolumeObject{app, db}, "stale; " + answer},
		{"settings", "", []VolumeObject{db}, answer},
		{"settings", "", []VolumeObject{db, app, db, db}, answer + " (the same of 2 more objects)"},
		{"settings", "stale", []VolumeObject{app, canary}, "stale"},
		{"settings", "", []VolumeObject{app, canary}, `ConfigMap "shop/app": canary 10%: not for this pod`},
	} {
		got := (Table{NoHeaders: true}).text(t, sample(Volume{Name: test.name, Reason: test.reason, Objects: test.objects}))
		if !strings.HasSuffix(got, "  "+test.want+"\n") {
			t.Errorf("got\n%s\nwant the end %q", got, test.want)
		}
	}
}
