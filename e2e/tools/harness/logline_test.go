package harness

import (
	"reflect"
	"strings"
	"testing"
)

func TestParseLog(t *testing.T) {
	want := []LogLine{
		{Message: `got "it"`, Fields: map[string]string{"method": "M", "pod": "shop/web", "took": "1.5s", "text": "a=b c"}},
		{Message: "failed", Fields: map[string]string{"err": "\tfirst\n\tsecond", "volumeID": "csi-1"}},
	}
	text := `I1122 07:00:00.000000       1 a.go:2] "got \"it\"" method="M" pod="shop/web" took="1.5s" text="a=b c"` + "\n" +
		"E1122 07:00:00.000000       1 a.go:2] \"failed\" err=<\n\tfirst\n\tsecond\n > volumeID=\"csi-1\"\n"
	if got, err := ParseLog(text); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v", got, err)
	}
	got, err := ParseLog(`{"ts":1.5,"msg":"got","v":2,"pod":{"name":"web","namespace":"shop"}}` + "\n")
	if err != nil || len(got) != 1 || !got[0].Is("got", map[string]string{"pod": "shop/web"}) || got[0].Is("got", map[string]string{"pod": "shop"}) {
		t.Errorf("got %v, %v", got, err)
	}
	for name, log := range map[string]string{
		"text": `I1122 07:00:00.000000       1 a.go:2] "got" id="1" pod="shop/web" id="1"` + "\n",
		"json": `{"msg":"got","id":"1","pod":"x","id":"1"}` + "\n",
	} {
		if _, err := ParseLog(log); err == nil || !strings.Contains(err.Error(), `the key "id" appears twice`) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := ParseLog("panic: x\n"); err == nil {
		t.Error("a line of another form is none of the log")
	}
}
