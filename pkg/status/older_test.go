package status

import (
	"strings"
	"testing"
)

// TestOlderAnswerInTheTable: the reason names the versions of one object and says what to do.
func TestOlderAnswerInTheTable(t *testing.T) {
	answer := &OlderAnswer{ResourceVersion: "11", Known: "20"}
	app, db := VolumeObject{Object: &Object{Kind: "ConfigMap", Namespace: "shop", Name: "app"}}, VolumeObject{Object: &Object{Kind: "Secret", Namespace: "shop", Name: "db", OlderAnswer: answer}}
	canary := VolumeObject{Object: &Object{Kind: "ConfigMap", Namespace: "shop", Name: "app", Canary: "10%"}, Absent: &Version{UID: "u", ResourceVersion: "1"}}
	const sentence = `Secret "shop/db": the API server answers with resourceVersion 11, older than 20: if etcd was restored with a bumped revision, write the object again, otherwise restart all plugins and then replace the pods`
	for want, v := range map[string]Volume{
		"  stale; " + sentence + "\n":                       {Reason: "stale", Objects: []VolumeObject{app, db}},
		"  " + sentence + "\n":                              {Objects: []VolumeObject{db}},
		"  " + sentence + " (the same of 2 more objects)\n": {Objects: []VolumeObject{db, app, db, db}},
		"  stale\n": {Reason: "stale", Objects: []VolumeObject{app, canary}},
		`  ConfigMap "shop/app": canary 10%: not for this pod` + "\n": {Objects: []VolumeObject{app, canary}},
	} {
		if got := (Table{NoHeaders: true}).text(t, sample(v)); !strings.HasSuffix(got, want) {
			t.Errorf("got\n%s\nwant the end %q", got, want)
		}
	}
}
