package main

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
)

// mostBetween is how many times as much as on the cheapest kernel something is expected to cost on another.
const mostBetween = 1.2

// named is a figure that is compared, in what the table shows of a part: its name and a number.
var named = regexp.MustCompile(`(\w+)=([0-9.]+)`)

// compare prints how the figures of the same parts differ between kernels. It fails nothing: the runs
// lie half an hour apart, and other work beside one of them makes it slower.
func compare(w io.Writer, outcomes []outcome) {
	figures := map[string][]float64{}
	var names []string
	for _, o := range outcomes {
		for _, found := range named.FindAllStringSubmatch(o.result, -1) {
			name := o.part + ": " + found[1]
			value, err := strconv.ParseFloat(found[2], 64)
			if err != nil {
				value = 0 // which is no figure
			}
			if figures[name] == nil {
				names = append(names, name)
			}
			figures[name] = append(figures[name], value)
		}
	}
	for _, name := range names {
		if len(figures[name]) < 2 {
			continue
		}
		least, most := slices.Min(figures[name]), slices.Max(figures[name])
		word := "within"
		if most > mostBetween*least {
			word = "NOT within"
		}
		fmt.Fprintf(w, "%s: %.2f to %.2f, a factor of %.2f, %s %g\n", name, least, most, most/least, word, mostBetween)
	}
}
