package integration

import (
	"errors"
	"fmt"
	"time"

	"github.com/refvol/refvol/e2e/tools/faultproxy"
)

// pausesWithin returns how many pauses of the back-off fit into d at the most. They are
// random; the shortest are 0.25, 0.5, 1 and 2 s, and 2.5 s from then on. That they begin
// anew after a calm time makes no more of them: that is as long as six of the longest.
func pausesWithin(d time.Duration) int {
	const longest = 2500 * time.Millisecond
	count := 0
	for pause := 250 * time.Millisecond; d >= pause; pause = min(2*pause, longest) {
		d -= pause
		count++
	}
	return count
}

// rounds are the requests for an object by their kinds.
type rounds struct{ initial, lists, goingOn int }

// roundsOf counts the rounds of each object.
func roundsOf(requests []faultproxy.Request) map[faultproxy.Object]rounds {
	all := make(map[faultproxy.Object]rounds)
	for _, r := range requests {
		c := all[r.Object]
		switch {
		case r.Initial:
			c.initial++
		case r.Verb == "WATCH":
			c.goingOn++
		case r.Verb == "LIST":
			c.lists++
		default:
			continue
		}
		all[r.Object] = c
	}
	return all
}

// checkPaced checks that no object was asked for more often within a time than the
// back-off allows: there is one round before each pause, and one after the last. At the
// most that is a watch that goes on; if it may not, a watch that begins with the state; if
// that may not, a list, and a second one of any version if the first one's is not to be
// had; and the watch that follows a list. Each is sent once, whatever its answer is, and
// what the server says, be it that it is busy, makes no pause shorter. turns is how often the server began to answer
// otherwise: after a refusal of the account or the connection requests go on with the first answer, and at once.
func checkPaced(requests []faultproxy.Request, took time.Duration, turns int) error {
	most := pausesWithin(took) + 1 + turns
	var errs []error
	for object, c := range roundsOf(requests) {
		if c.initial > most || c.lists > 2*most || c.goingOn > 2*most {
			errs = append(errs, fmt.Errorf("%v was asked for by %d watches that begin with the state, %d lists and %d other watches in %s; "+
				"that is more than %d rounds", object, c.initial, c.lists, c.goingOn, took, most))
		}
	}
	return errors.Join(errs...)
}
