package report

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/publisher"
)

// TestAbnormal: temporary states are given time, and objects that cannot change or are watched need no proof. Ages are in seconds. An
// object that was never proven has the age -1, and was first referenced an hour ago.
func TestAbnormal(t *testing.T) {
	type object struct {
		proven int
		stale  bool
	}
	const (
		soon, limit, late = 299, 300, 301
		never             = -1
		hour              = 3600
	)
	for name, test := range map[string]struct {
		condition    publisher.Condition
		reason       string
		age          int
		withoutToken bool
		objects      []object
		resync       time.Duration
		want         string
	}{
		"current":                    {"Current", "", hour, false, []object{{soon, true}, {limit, true}}, 0, ""},
		"silent":                     {"Current", "", hour, false, []object{{soon, true}, {late, true}}, 0, `ConfigMap "shop/1": nothing has proven since 1999-12-31T23:54:59Z that it has not changed`},
		"all silent":                 {"Current", "", hour, false, []object{{late, true}, {400, true}, {late, true}}, 0, `ConfigMap "shop/1": nothing has proven since 1999-12-31T23:53:20Z that it has not changed, and the same of 2 more`},
		"never proven":               {"Current", "", hour, false, []object{{never, true}}, 0, `ConfigMap "shop/0": nothing has proven since 1999-12-31T23:00:00Z that it has not changed`},
		"a quiet watch":              {"Current", "", hour, false, []object{{1 << 20, false}}, 0, ""},
		"polled":                     {"Current", "", hour, false, []object{{420, true}}, time.Minute, ""},
		"polled in vain":             {"Current", "", hour, false, []object{{421, true}}, time.Minute, `ConfigMap "shop/0": nothing has proven since 1999-12-31T23:52:59Z that it has not changed`},
		"no objects":                 {"Current", "", hour, false, nil, 0, ""},
		"no token":                   {"Current", "", 0, true, []object{{0, true}}, 0, "the pod's service account has no usable token, so no change of an object can arrive"},
		"pinned":                     {"Pinned", "", 1 << 20, false, []object{{1 << 20, true}}, 0, ""},
		"unknown":                    {"Unknown", "not taken over", limit, true, nil, 0, ""},
		"unknown for long":           {"Unknown", "not taken over", late, true, nil, 0, "not taken over"},
		"publishing":                 {"Publishing", "", limit, true, []object{{never, true}}, 0, ""},
		"publishing for long":        {"Publishing", "", late, false, nil, 0, "the condition should have passed: it is Publishing since 1999-12-31T23:54:59Z"},
		"stale":                      {"Stale", "an object is not synced", limit, true, []object{{never, true}}, 0, ""},
		"stale for long":             {"Stale", "an object is not synced", late, false, nil, 0, "an object is not synced"},
		"fault":                      {"RefDeleted", "it is gone", 0, false, nil, 0, "it is gone"},
		"a condition of another one": {"Newer", "", 0, false, nil, 0, "Newer"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ago := func(seconds int) time.Time { return time.Now().Add(-time.Duration(seconds) * time.Second) }
				v := publisher.VolumeStatus{Condition: test.condition, Reason: test.reason, Since: ago(test.age), WithoutToken: test.withoutToken}
				w := &world{}
				for i, o := range test.objects {
					ref := configMap(string(rune('0' + i)))
					known := manager.ObjectStatus{Ref: ref, State: manager.Present, Since: ago(hour), Watched: true, Stale: o.stale}
					if o.proven != never {
						known.LastConfirmed = ago(o.proven)
					}
					w.objects = append(w.objects, known)
					v.Refs = append(v.Refs, ref)
				}
				w.volumes = append(w.volumes, v)
				got := w.report(t, test.resync).Volumes[0]
				want := test.want
				if want == "" {
					want = test.reason
				}
				if got.Abnormal != (test.want != "") || got.Reason != want {
					t.Errorf("abnormal: %t, %q, want %q", got.Abnormal, got.Reason, want)
				}
			})
		})
	}
}
