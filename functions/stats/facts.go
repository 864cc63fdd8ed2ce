package stats

import "github.com/cloudfn/cloudfn/shared/domain"

// facts sum a series up.
type facts struct {
	First, Last             domain.HourStat
	Peak                    *domain.HourStat // the first hour with the most running servers; nil when none is known
	Most                    int              // servers of an hour, running or not, uncertain ones included
	Hours, Missing, Rebuilt int
	Uncertain               int // hours with uncertain servers
}

func factsOf(s series) facts {
	f := facts{First: s.hours[0], Last: s.hours[len(s.hours)-1], Hours: len(s.hours)}
	for _, h := range s.hours {
		if !known(h) {
			f.Missing++
			continue
		}
		if h.Source == domain.Rebuilt {
			f.Rebuilt++
		}
		if f.Peak == nil || *h.Running > *f.Peak.Running {
			f.Peak = &h
		}
		if h.Uncertain > 0 {
			f.Uncertain++
		}
		f.Most = max(f.Most, *h.Running+h.Uncertain, *h.Total)
	}
	return f
}
