package report

import (
	"testing"

	"github.com/refvol/refvol/pkg/publisher"
	"github.com/refvol/refvol/pkg/record"
	"github.com/refvol/refvol/pkg/volume"
)

// TestRevisions: the revision of a version is known if a volume that shows it knows it. A volume for which the version says that a canary does
// not exist knows nothing of it.
func TestRevisions(t *testing.T) {
	ref, version := configMap("app"), volume.Version{UID: "u1", ResourceVersion: "812"}
	shows := func(revisions map[volume.Ref]volume.Revision) publisher.VolumeStatus {
		return publisher.VolumeStatus{Record: record.Record{Shown: record.Versions{ref: version}}, Revisions: revisions}
	}
	known, unknown, none := shows(map[volume.Ref]volume.Revision{ref: "r1"}), shows(map[volume.Ref]volume.Revision{}), shows(nil)
	absent := publisher.VolumeStatus{Record: record.Record{Absent: record.Versions{ref: version}}}
	for name, test := range map[string]struct {
		volumes []publisher.VolumeStatus
		want    volume.Revision
	}{
		"known":              {[]publisher.VolumeStatus{unknown, known}, "r1"},
		"and again":          {[]publisher.VolumeStatus{known, unknown}, "r1"},
		"none":               {[]publisher.VolumeStatus{unknown, none, unknown}, ""},
		"unknown":            {[]publisher.VolumeStatus{unknown}, unknownRevision},
		"absent, unknown":    {[]publisher.VolumeStatus{absent, unknown, absent}, unknownRevision},
		"absent for all":     {[]publisher.VolumeStatus{absent, absent}, ""},
		"absent, then known": {[]publisher.VolumeStatus{absent, known}, "r1"},
	} {
		shared := &object{}
		shared.Ref = ref
		var volumes []*reportedVolume
		for _, v := range test.volumes {
			volumes = append(volumes, &reportedVolume{VolumeStatus: v, objects: []namedObject{{object: shared}}})
		}
		if all := number(volumes); len(all) != 1 || len(all[0].versions) != 1 || all[0].versions[0].revision != test.want {
			t.Errorf("%s: %+v, want %q", name, all[0].versions, test.want)
		}
	}
}
