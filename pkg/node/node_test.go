package node

import (
	"net/http"
	"reflect"
	"slices"
	"testing"
	"time"

	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/internal/expect"
	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/apiclient"
	"github.com/refvol/refvol/pkg/authz"
	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/loglimit"
	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/metrics"
	"github.com/refvol/refvol/pkg/opened"
	"github.com/refvol/refvol/pkg/publisher"
	"github.com/refvol/refvol/pkg/requests"
	"github.com/refvol/refvol/pkg/writer"
)

// TestEverythingIsGivenOn: each setting reaches its packages, and no option of theirs is forgotten. A package takes most missing options for
// no limit, no log and the like.
func TestEverythingIsGivenOn(t *testing.T) {
	s := Settings{
		Driver: "d", NodeName: "n", KubeletDir: "/k", Identity: authz.IdentityPod, ChangeDetection: manager.Watch, CrossNamespace: true,
		ResyncInterval: 2 * time.Minute, DefaultSpread: 3 * time.Minute, PublishWait: 4 * time.Second,
		MaxVolumeSize: 1 << 20, MaxTotalSize: 2 << 20, MaxCachedSize: 3 << 20,
	}
	expect.Equal(t, "settings that this test lacks", zeros(s), nil)
	client := must.Get(apiclient.New(&rest.Config{Host: "http://api.test"}, http.DefaultClient))(t)
	limit := loglimit.New(klog.Background(), func() {})
	defer limit.Close()
	w := newWiring(s, System{
		Client: client, Requests: requests.New(), Mounts: struct{ publisher.Mounts }{}, AttributePrefix: "user.", NotShared: func() error { return nil },
		Opens: struct{ opened.Watcher }{}, NewWriter: func(writer.Options) publisher.Writer { return nil }, Events: struct{ binding.Events }{},
		Metrics: metrics.New(apiversion.Info{}), LogLimit: limit,
	}, client)
	reads, shows := w.reads, w.shows
	expect.Equal(t, "what the manager lacks", zeros(reads), []string{"Accounts", "RefusalsPass"})                       // readAs sets these
	expect.Equal(t, "what the publisher lacks", zeros(shows), []string{"Identity", "NodeRights", "Objects", "Reviews"}) // so does New
	expect.Equal(t, "what the manager gets",
		Settings{NodeName: reads.NodeName, ChangeDetection: reads.ChangeDetection, ResyncInterval: reads.ResyncInterval, MaxCachedSize: reads.MaxCachedSize},
		Settings{NodeName: s.NodeName, ChangeDetection: s.ChangeDetection, ResyncInterval: s.ResyncInterval, MaxCachedSize: s.MaxCachedSize})
	got := Settings{
		Driver: shows.Driver, NodeName: shows.NodeName, KubeletDir: shows.KubeletDir, CrossNamespace: shows.CrossNamespace,
		ResyncInterval: shows.ResyncInterval, DefaultSpread: shows.DefaultSpread, PublishWait: shows.PublishWait,
		MaxVolumeSize: shows.MaxVolumeSize, MaxTotalSize: shows.MaxTotalSize,
	}
	want := s
	want.Identity, want.ChangeDetection, want.MaxCachedSize = "", "", 0
	expect.Equal(t, "what the publisher gets", got, want)
}

// zeros returns the names of the fields that are not set, also those of embedded structs, sorted.
func zeros(of any) (names []string) {
	for field, value := range reflect.ValueOf(of).Fields() {
		switch {
		case field.Anonymous:
			names = append(names, zeros(value.Interface())...)
		case value.IsZero():
			names = append(names, field.Name)
		}
	}
	slices.Sort(names)
	return names
}
