package main

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/refvol/refvol/pkg/fleet"
	"github.com/refvol/refvol/pkg/status"
)

// twoNamespaces returns a status with a volume in each of two namespaces. Both name the same object.
func twoNamespaces() *clusterStatus {
	ca := &status.Object{Kind: "ConfigMap", Namespace: "shop", Name: "ca", State: "present"}
	db := &status.Object{Kind: "Secret", Namespace: "bank", Name: "db", State: "denied"}
	volume := func(namespace, version string, abnormal bool, objects ...*status.Object) status.Volume {
		v := status.Volume{VolumeID: namespace, Name: "settings", Pod: status.Pod{Namespace: namespace, Name: "pod"}, Abnormal: abnormal}
		for _, o := range objects {
			v.Objects = append(v.Objects, status.VolumeObject{Object: o, Shown: &status.Version{UID: "u", ResourceVersion: version}})
		}
		return v
	}
	report := &status.Report{Volumes: []status.Volume{volume("bank", "8", true, db, ca), volume("shop", "9", false, ca)}}
	report.Number()
	return newClusterStatus("csi.refvol.dev", &fleet.Survey{Nodes: []fleet.Node{{Name: "n", Report: report}}})
}

// TestColumnsOfObjects: in custom-columns, a volume has the fields of its objects, and not their places.
func TestColumnsOfObjects(t *testing.T) {
	const spec = "custom-columns=NODE:.node,NAMES:.objects[*].name,STATES:.objects[*].state,SHOWN:.objects[*].shown.resourceVersion,PLACES:.objects[*].object"
	if got := strings.Join(strings.Fields(printed(t, twoNamespaces(), "-o", spec, "--no-headers")), " "); got != "n db,ca denied,present 8,8 <none> n ca present 9 <none>" {
		t.Errorf("got %s", got)
	}
}

// TestObjectsOfRemovedVolumes: what is left out with its volume is not printed, and the rest can be read.
func TestObjectsOfRemovedVolumes(t *testing.T) {
	for what, remove := range map[string]func(*clusterStatus){
		"shop ca 9": func(s *clusterStatus) { s.keepNamespace("shop") },
		"bank db 8": func(s *clusterStatus) { *s = *s.abnormal() },
	} {
		s := twoNamespaces()
		remove(s)
		report := s.Nodes[0].Report
		report.APIVersion, report.Kind = status.APIVersion, status.Kind
		text, err := json.Marshal(report)
		if err != nil {
			t.Fatal(err)
		}
		read, err := status.Read(bytes.NewReader(text))
		if err != nil || !reflect.DeepEqual(read, report) {
			t.Errorf("%s: %v", text, err)
		}
		v := read.Volumes[0]
		if got := v.Pod.Namespace + " " + v.Objects[0].Name + " " + v.Objects[0].Shown.ResourceVersion; got != what {
			t.Errorf("got %s, want %s", got, what)
		}
		if strings.Contains(string(text), `"db"`) != (what == "bank db 8") {
			t.Errorf("%s has the object of another namespace", text)
		}
	}
}

// TestWatchPrintsNodesAgain: a node's problem is printed each time it comes, and the volumes of a node that answers again are not.
func TestWatchPrintsNodesAgain(t *testing.T) {
	table := status.Table{NoHeaders: true, Printed: &status.Printed{}}
	look := func(reason fleet.Reason) string {
		s := twoNamespaces()
		if n := &s.Nodes[0]; reason != "" {
			n.Report, n.Problem = nil, &fleet.Problem{Reason: reason}
		} else {
			n.Report.Node = n.Node
		}
		var out bytes.Buffer
		if err := s.writeTable(&out, table); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	for i, test := range []struct {
		reason fleet.Reason
		want   int
	}{
		{"", 2},
		{fleet.Unreachable, 1},
		{fleet.Unreachable, 0},
		{fleet.NoPlugin, 1},
		{fleet.Unreachable, 1},
		{"", 0},
		{fleet.Unreachable, 1},
	} {
		if got := look(test.reason); strings.Count(got, "\n") != test.want {
			t.Errorf("look %d, %q: got %q, want %d lines", i+1, test.reason, got, test.want)
		}
	}
}
